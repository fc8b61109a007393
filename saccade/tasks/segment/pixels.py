"""From logits to the class of every pixel, at the image's own size.

    logits at 1/4 -> x4 -> padding cut away -> the image's own size -> the likeliest class

All resizing is bilinear, and a few classes at a time, so that its memory is bounded for any image
size and any number of classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from saccade.layers.semantic import STRIDE, raised

IGNORED = 255  # what a mask says where no class is known
AT_ONCE = 2**24  # numbers: logits that are resized together


def likeliest(
    output: dict[str, Tensor], sizes: Sequence[tuple[int, int]]
) -> list[UInt8[Tensor, "_ _"]]:
    """Of each image the likeliest class of each pixel, at these heights and widths."""
    inner = output["size"].tolist()
    return [
        _one(logits, inner_size, size)
        for logits, inner_size, size in zip(output["logits"].float(), inner, sizes, strict=True)
    ]


def _one(
    logits: Float[Tensor, "K h w"], inner_size: Sequence[int], size: tuple[int, int]
) -> UInt8[Tensor, "H W"]:
    """The classes of one image, whose height and width were `inner_size` before the network."""
    pixels = max(size[0] * size[1], STRIDE**2 * logits[0].numel())
    together = max(AT_ONCE // pixels, 1)
    best = torch.full(size, -torch.inf, device=logits.device)
    label = torch.zeros(size, dtype=torch.uint8, device=logits.device)
    for first in range(0, len(logits), together):
        some = raised(logits[None, first : first + together].contiguous(), STRIDE, inner_size)
        if tuple(inner_size) != tuple(size):
            some = F.interpolate(some, size=size, mode="bilinear", align_corners=False)
        value, index = some[0].max(0)
        surer = value > best
        best = torch.where(surer, value, best)
        label = torch.where(surer, (index + first).to(torch.uint8), label)
    return label
