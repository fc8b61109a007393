"""An annotation on its way through the steps: boxes, labels, and masks where there are some.

    {"boxes": n 4, "labels": n, "masks": n H W}

Boxes are corners in pixels, x to the right and y down; a pixel spans from its number to the next.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

Target = dict[str, Any]
LEFT = 1.0  # pixels that must be left of a box, in width and height


def sides(boxes: Tensor) -> Float[Tensor, "n 2"]:
    """Widths and heights."""
    plain = boxes.as_subclass(Tensor)
    return plain[:, 2:] - plain[:, :2]


def select(target: Target, those: Bool[Tensor, "n"]) -> Target:
    """The target of the objects that the mask `those` selects."""
    return {key: tv_tensors.wrap(value[those], like=value) if isinstance(value, tv_tensors.TVTensor)
            else value[those] for key, value in target.items()}  # fmt: skip


def cut(
    image: Tensor, target: Target, top: int, left: int, side: tuple[int, int], share: float = 0.0
) -> tuple[Tensor, Target]:
    """A part of an image, with what it leaves of the objects.

    Args:
        image: of any height and width
        target: its objects
        top: first row of the part
        left: first column
        side: height and width of the part, inside the image
        share: of its area that must be left of a box; less than a pixel, in width or height, is
            never enough, but a small box that is whole is
    """
    moved = moved_alike(target, lambda value: F.crop(value, top, left, *side))
    whole, boxes = sides(target["boxes"]), sides(moved["boxes"])
    least = whole.mul(0.999).clamp(max=LEFT)
    there = (boxes >= least).all(1) & (boxes.prod(1) >= share * whole.prod(1))
    return F.crop(image, top, left, *side), select(moved, there)


def moved_alike(target: Target, move: Any) -> Target:
    """The target with its boxes and masks moved by a function of torchvision's."""
    return {
        key: move(value) if isinstance(value, tv_tensors.TVTensor) else value
        for key, value in target.items()
    }


def joined(targets: Sequence[Target], canvas: tuple[int, int]) -> Target:
    """The objects of several targets on one canvas of a height and width."""
    kind: Any = tv_tensors.BoundingBoxes
    plain = torch.cat([target["boxes"].as_subclass(Tensor) for target in targets])
    together: Target = {
        "boxes": kind(plain, format="XYXY", canvas_size=canvas),
        "labels": torch.cat([target["labels"] for target in targets]),
    }
    if "masks" in targets[0]:
        masks = [target["masks"].as_subclass(Tensor) for target in targets]
        together["masks"] = tv_tensors.Mask(torch.cat(masks))
    return together
