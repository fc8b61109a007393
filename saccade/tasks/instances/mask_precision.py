"""COCO's figures of masks and of boxes: overlap counted in pixels, and between rectangles.

    mask_AP, mask_AP50, ...   as AP and its kin, with the overlap of masks
    AP, AP50, ...             of the boxes

Masks are kept as compressed runs; a true mask has the area that the annotation says.
"""

from typing import Any

import torch
from torch import Tensor

from saccade.data.boxes.outlines import encoded
from saccade.tasks.detect.average_precision import FIGURES, AveragePrecision
from saccade.tasks.detect.counting import evaluated

PREFIX = "mask_"


class MaskPrecision(AveragePrecision):
    """Boxes and masks that a task predicts, against those that the targets name, by image."""

    KIND = "segm"

    def update(self, output: dict[str, Any], target: dict[str, Any]) -> None:
        originals = [(int(h), int(w)) for h, w in target["original"]]
        predictions = self.predict(output, originals)
        self.note(predictions, originals, target)
        for key, one, truth in zip(target["id"], predictions, target["masks"], strict=True):
            one_image = self.by_image[int(key)]
            one_image.setdefault("masks", _runs(one.masks))
            one_image.setdefault("true_masks", _runs(truth))

    def compute(self) -> dict[str, float]:
        masks = super().compute()
        images = masks.pop("images")
        boxes = evaluated(self.by_image, len(self.classes)).stats
        pairs = zip(FIGURES, boxes, strict=True)
        return {
            **{PREFIX + name: value for name, value in masks.items()},
            **{name: 100 * float(value) for name, value in pairs if value > -1},
            "images": images,
        }


def _runs(masks: Tensor) -> list[bytes]:
    return encoded(masks.detach().to("cpu", torch.uint8).numpy())
