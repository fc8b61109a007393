"""Our layers in other people's networks, in place: `saccade.graft`."""

from saccade.models.graft.surgery import Report, again, graft, several

__all__ = ["Report", "again", "graft", "several"]
