"""Images with a class for each pixel: folders of masks, and what is done to them in training."""

from saccade.data.masks.dataset import IGNORED, Legend, Masks, aligned, every, find

__all__ = ["IGNORED", "Legend", "Masks", "aligned", "every", "find"]
