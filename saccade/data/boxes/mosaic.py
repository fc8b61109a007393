"""Several images as one: mosaic and mixup.

    mosaic   four images around a point, each cut to its quarter of the canvas
    mixup    two images, each pixel the mean of both by a share near one half; the objects of both

Which other images take part is drawn by the image's own random numbers, so an epoch is the same for
any number of workers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from saccade.data.boxes.target import Target, cut, joined, moved_alike

Pair = tuple[Tensor, Target]
QUARTERS = 3  # further images of a mosaic
MIDDLE = (0.3, 0.7)  # where the point lies, as a share of the canvas
LEAST_SHARE = 0.1  # of a box that a quarter must leave
BETA = 32.0  # of mixup: shares near one half


class Gathering:
    """Which images are put together, and how often.

    Args:
        mosaic: share of the images that become one of four
        mixup: share of the images that another is laid over
        epochs: both are done in the first so many epochs; in all if None
    """

    def __init__(self, mosaic: float, mixup: float, epochs: int | None = None):
        self.mosaic, self.mixup, self.epochs = mosaic, mixup, epochs

    def __bool__(self) -> bool:
        return self.mosaic > 0 or self.mixup > 0

    def others(self, count: int, epoch: int) -> list[int]:
        """Places of further images in a set of so many: none, one, three or four."""
        if not self or (self.epochs is not None and epoch >= self.epochs):
            return []
        fours, twos = (torch.rand(2) < torch.tensor([self.mosaic, self.mixup])).tolist()
        return torch.randint(count, (QUARTERS * fours + twos,)).tolist()

    def __repr__(self) -> str:
        return f"Gathering(mosaic={self.mosaic}, mixup={self.mixup}, epochs={self.epochs})"


def mosaic(canvas: tuple[int, int], parts: Sequence[Pair], fill: Sequence[int]) -> Pair:
    """Four images around a point on a canvas of a height and width.

    Args:
        canvas: height and width
        parts: four images with their objects; of one that is larger than its quarter a random part
            is cut out, one that is smaller lies beside the point
        fill: the colour where no image lies
    """
    H, W = canvas
    low, high = MIDDLE
    y, x = (
        min(max(round(side * float(torch.empty(()).uniform_(low, high))), 1), side - 1)
        for side in (H, W)
    )
    sheet = torch.tensor(fill, dtype=torch.uint8)[:, None, None].repeat(1, H, W)
    targets = []
    for i, (image, target) in enumerate(parts):
        below, right = divmod(i, 2)
        room = (H - y if below else y), (W - x if right else x)
        image, target = _part(image, target, room)
        h, w = image.shape[-2:]
        top, left = y if below else y - h, x if right else x - w
        sheet[:, top : top + h, left : left + w] = image
        targets.append(placed(target, top, left, canvas))
    return tv_tensors.Image(sheet), joined(targets, canvas)


def mixup(first: Pair, second: Pair, fill: Sequence[int]) -> Pair:
    """Both images at once, on the canvas of the first; of a larger second one a random part."""
    image, target = first
    H, W = image.shape[-2:]
    over, more = _part(*second, (H, W))
    h, w = over.shape[-2:]
    sheet = torch.tensor(fill, dtype=torch.uint8)[:, None, None].repeat(1, H, W)
    sheet[:, :h, :w] = over
    share = float(torch.distributions.Beta(BETA, BETA).sample())
    mixed = image.as_subclass(Tensor).float().lerp(sheet.float(), share).round_().to(torch.uint8)
    return tv_tensors.Image(mixed), joined([target, placed(more, 0, 0, (H, W))], (H, W))


def placed(target: Target, top: int, left: int, canvas: tuple[int, int]) -> Target:
    """Objects of an image that lies on a larger canvas, in pixels of that."""

    def move(value: Any) -> Any:
        h, w = (
            value.canvas_size if isinstance(value, tv_tensors.BoundingBoxes) else value.shape[-2:]
        )
        return F.pad(value, [left, top, canvas[1] - left - w, canvas[0] - top - h])

    return moved_alike(target, move)


def _part(image: Tensor, target: Target, room: tuple[int, int]) -> Pair:
    """What fits into a height and width, cut out at random."""
    H, W = image.shape[-2:]
    side = min(H, room[0]), min(W, room[1])
    top, left = (
        int(torch.randint(whole - part + 1, ())) for whole, part in zip((H, W), side, strict=True)
    )
    return cut(image, target, top, left, side, LEAST_SHARE)


def together(
    pairs: Sequence[Pair],
    first: Callable[[Pair], Pair],
    smaller: Callable[[Pair], Pair],
    fill: Sequence[int],
) -> Pair:
    """One image of one, two, four or five.

    Args:
        pairs: the image itself, then those that `Gathering.others` named
        first: what an image by itself goes through
        smaller: what an image of a mosaic goes through
        fill: the colour where no image lies
    """
    own = first(pairs[0])
    if len(pairs) > QUARTERS:
        canvas = own[0].shape[-2], own[0].shape[-1]
        own = mosaic(canvas, [smaller(pair) for pair in pairs[: QUARTERS + 1]], fill)
    if len(pairs) % QUARTERS == 2:
        own = mixup(own, first(pairs[-1]), fill)
    return own
