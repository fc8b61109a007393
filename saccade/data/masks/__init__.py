"""Images with a class for each pixel: folders of masks, and their augmentation."""

from saccade.data.masks.dataset import IGNORED, Legend, Masks, aligned, every, find

__all__ = ["IGNORED", "Legend", "Masks", "aligned", "every", "find"]
