"""A local web page: drop a picture, and see predictions and attention maps."""

from saccade.serve.application import UPLOAD, alone, app, opened
from saccade.serve.show import PageModel, fitted, loaded, look, titles

__all__ = [
    "UPLOAD", "PageModel", "alone", "app", "fitted", "loaded", "look", "opened", "titles",
]  # fmt: skip
