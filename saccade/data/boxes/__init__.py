"""Images with boxes: data sets in COCO's json, and their augmentation."""

from saccade.data.boxes.dataset import Boxes, aligned, every, find, hold_out

__all__ = ["Boxes", "aligned", "every", "find", "hold_out"]
