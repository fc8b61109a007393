"""A local web page: drop a picture, and see predictions and attention maps."""

from saccade.serve.application import UPLOAD, alone, app, open_upload
from saccade.serve.show import PageModel, fitted, loaded, look, titles

__all__ = [
    "UPLOAD", "PageModel", "alone", "app", "fitted", "loaded", "look", "open_upload", "titles",
]  # fmt: skip
