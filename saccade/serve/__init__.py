"""A local page: drop a picture, see what models say and where they look."""

from saccade.serve.application import UPLOAD, alone, app, opened
from saccade.serve.show import PageModel, fitted, loaded, look, titles

__all__ = [
    "UPLOAD", "PageModel", "alone", "app", "fitted", "loaded", "look", "opened", "titles",
]  # fmt: skip
