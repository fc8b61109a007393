"""What the papers print, what the code counts, and what runs reached."""

from saccade.paper.claim import Claim

__all__ = ["Claim"]
