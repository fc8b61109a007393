"""Panoptic-FPN's semantic branch: merge a backbone's maps into one at stride 4.

    L_i = 1x1 conv of C_i                              every map at one width
    M_i = L_i + M_i+1, each of its pixels twice        from the coarsest down
    P_i = 3x3 conv of M_i
    T_i = (3x3 conv, GroupNorm, ReLU, x2 bilinear) until P_i is at stride 4; once, without x2, if it
          is there already
    S   = sum over levels of T_i

All of them are drawn by Xavier, biases zero (LinGlo, section 4.3).

Maps are ceil(size / stride), so that twice a map may have one row or column too many, which is cut
off.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.conv import Conv3x3
from saccade.layers.pyramid import draw, top_down

STRIDE = 4  # of the sum


def raised(
    x: Float[Tensor, "B C h w"], times: int, size: Sequence[int]
) -> Float[Tensor, "B C H W"]:
    """Enlarge bilinearly by `times` a side and cut to `size`, without a shift."""
    x = F.interpolate(x, scale_factor=times, mode="bilinear", align_corners=False)
    return top_left(x, size)


def top_left(x: Float[Tensor, "B C h w"], size: Sequence[int]) -> Float[Tensor, "B C H W"]:
    """The first rows and columns."""
    if torch.compiler.is_exporting():  # a slice would fix the exported graph to one size
        x = x.index_select(2, torch.arange(size[0], device=x.device))
        return x.index_select(3, torch.arange(size[1], device=x.device))
    return x[..., : size[0], : size[1]]


class TopDown(nn.Module):
    """From a backbone's maps, finest first, to maps of one width with the coarser ones added."""

    def __init__(self, widths: Sequence[int], dim: int = 256):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, dim, 1) for width in widths)
        self.smooth = nn.ModuleList(Conv3x3(dim, dim) for _ in widths)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for conv in (*self.lateral, *self.smooth):
            draw(conv, nn.init.xavier_uniform_)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        merged = top_down([lateral(x) for lateral, x in zip(self.lateral, maps, strict=True)])
        return [smooth(x) for smooth, x in zip(self.smooth, merged, strict=True)]


class Tower(nn.Module):
    """Enlarge one level to stride 4: a convolution for each doubling, and at least one."""

    def __init__(self, dim: int, inner: int, stride: int):
        super().__init__()
        doublings = math.log2(stride / STRIDE)
        if doublings < 0 or doublings % 1:
            raise ValueError(
                f"Tower: a map's stride is {STRIDE} times a power of two, got {stride=}"
            )
        self.doublings = int(doublings)
        widths = [dim, *[inner] * max(self.doublings, 1)]
        self.mix = nn.ModuleList(Conv3x3(a, b, bias=False) for a, b in pairwise(widths))
        groups = math.gcd(32, inner)
        self.norm = nn.ModuleList(nn.GroupNorm(groups, inner) for _ in self.mix)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for conv in self.mix:
            draw(conv, nn.init.xavier_uniform_)

    def forward(
        self, x: Float[Tensor, "B C h w"], image: Sequence[int]
    ) -> Float[Tensor, "B D H W"]:
        """`image`: height and width of the image that the map is of."""
        for i, (mix, norm) in enumerate(zip(self.mix, self.norm, strict=True)):
            x = F.relu(norm(mix(x)))
            if self.doublings:
                stride = STRIDE * 2 ** (self.doublings - 1 - i)
                x = raised(x, 2, [(side + stride - 1) // stride for side in image])
        return x


class SemanticBranch(nn.Module):
    """From a backbone's maps, finest first, to logits at stride 4."""

    def __init__(
        self,
        widths: Sequence[int],
        strides: Sequence[int],
        classes: int,
        dim: int = 256,
        inner: int = 128,
    ):
        super().__init__()
        self.pyramid = TopDown(widths, dim)
        self.towers = nn.ModuleList(Tower(dim, inner, stride) for stride in strides)
        self.classify = nn.Conv2d(inner, classes, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw(self.classify, nn.init.xavier_uniform_)

    def forward(self, maps: Sequence[Tensor], image: Sequence[int]) -> Float[Tensor, "B K h w"]:
        levels = self.pyramid(maps)
        total = self.towers[0](levels[0], image)
        for tower, level in zip(self.towers[1:], levels[1:], strict=True):
            total = total + tower(level, image)
        return self.classify(total)
