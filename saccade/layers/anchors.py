"""Anchors: the boxes that a dense detector's offsets start from.

At every place of a level, 3 shapes x `scales` sizes around the middle of its cell:

    sides   least x stride x 2^(i / scales),   i = 0 .. scales - 1, so that levels join up
    shapes  height : width = 1:2, 1:1, 2:1, of equal area

The order is row, column, shape, size: that of the channels of a head, reshaped.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

RATIOS = (0.5, 1.0, 2.0)  # height : width
MOST_SIZES = 16  # sizes of images whose anchors are cached


class Anchors:
    """Anchors of all levels for maps of any size; cached by size."""

    def __init__(self, strides: Sequence[int], scales: int = 3, least: float = 4.0):
        if scales < 1 or least <= 0:
            raise ValueError(f"Anchors: scales and least lie above 0, got {scales=} {least=}")
        self.strides, self.scales, self.least = tuple(strides), scales, least
        self._cache: dict[tuple, Tensor] = {}

    def shapes(self, stride: int) -> Float[Tensor, "a 4"]:
        """x0 y0 x1 y1 around the origin."""
        side = self.least * stride * 2 ** (torch.arange(self.scales) / self.scales)
        stretch = torch.tensor(RATIOS).sqrt()[:, None]
        w, h = (side / stretch).flatten(), (side * stretch).flatten()
        return torch.stack((-w, -h, w, h), 1) / 2

    def level(self, grid: tuple[int, int], stride: int) -> Float[Tensor, "n 4"]:
        y, x = ((torch.arange(n) + 0.5) * stride for n in grid)
        y, x = torch.meshgrid(y, x, indexing="ij")
        centres = torch.stack((x, y, x, y), -1).reshape(-1, 1, 4)
        return (centres + self.shapes(stride)).reshape(-1, 4)

    def __call__(
        self, grids: Sequence[tuple[int, int]], device: torch.device | str = "cpu"
    ) -> Float[Tensor, "N 4"]:
        """For levels of that many rows and columns, finest first; in pixels of the image."""
        # Sizes may be symbols, and tensors those of a tracer: nothing may be cached.
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            return self.all_levels(grids).to(device)
        key = tuple(grids), str(device)
        if key not in self._cache:
            if len(self._cache) >= MOST_SIZES:
                self._cache.pop(next(iter(self._cache)))
            with torch.inference_mode(False):  # the cache serves calls in any mode
                self._cache[key] = self.all_levels(grids).to(device)
        return self._cache[key]

    def all_levels(self, grids: Sequence[tuple[int, int]]) -> Float[Tensor, "N 4"]:
        levels = [self.level(g, s) for g, s in zip(grids, self.strides, strict=True)]
        return torch.cat(levels)


def within(anchors: Float[Tensor, "N 4"], size: Sequence[float]) -> Bool[Tensor, " N"]:
    """Which anchors have their centre on an image of that height and width."""
    x, y = (anchors[:, :2] + anchors[:, 2:]).unbind(1)
    return (x < 2 * size[1]) & (y < 2 * size[0])
