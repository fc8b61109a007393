"""Images with boxes: sets in COCO's json, and what is done to them in training."""

from saccade.data.boxes.dataset import Boxes, aligned, every, find, hold_out

__all__ = ["Boxes", "aligned", "every", "find", "hold_out"]
