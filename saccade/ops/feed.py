"""The feed-forward half of a block, with or without a position between its two products.

    h = x W1 + b1
    u = h * taps + shift      a depth-wise 3x3 (LinGlo's RP-CPE as one kernel), or u = h
    y = gelu(u) W2 + b2

`plain` reads like that, and holds three maps as wide as h. Where `saccade.ops.native` has kernels
that multiply faster than torch's library, all of it is one operator: h exists for a few rows at a
time, or, for a backward to come, once.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.linear import pays
from saccade.ops.native.feed import feed_forward as fused
from saccade.ops.native.feed import supports
from saccade.ops.second import transformed

FEWEST = 32  # pixels for which it pays to lay out two matrices


class Weights(NamedTuple):
    """The letters of the equation, each matrix as `nn.Linear` keeps it (out, in)."""

    w1: Float[Tensor, "J C"]
    b1: Float[Tensor, "J"]
    taps: Float[Tensor, "J 1 3 3"] | None
    shift: Float[Tensor, "J"] | None
    w2: Float[Tensor, "D J"]
    b2: Float[Tensor, "D"]


def feed_forward(
    x: Float[Tensor, "B H W C"], w: Weights, tanh: bool = False
) -> Float[Tensor, "B H W D"]:
    """By the fused kernel where there is one that takes such a call, else by `plain`."""
    return fused(x, *w, tanh) if fuses(x, w.w1) else plain(x, w, tanh)


def fuses(x: Float[Tensor, "B H W C"], w1: Float[Tensor, "J C"]) -> bool:
    """Whether the kernel takes such a call, and is the faster way here."""
    if torch.compiler.is_exporting() or transformed() or not supports(x, w1):
        return False
    B, H, W, _ = x.shape
    return B * H * W >= FEWEST and native.available() and pays()


def plain(x: Float[Tensor, "B H W C"], w: Weights, tanh: bool = False) -> Float[Tensor, "B H W D"]:
    """The same, equation by equation; `tanh` is GELU's other form."""
    u = F.linear(x, w.w1, w.b1)
    if w.taps is not None:
        u = F.conv2d(u.permute(0, 3, 1, 2), w.taps, w.shift, padding=1, groups=len(w.taps))
        u = u.permute(0, 2, 3, 1)
    return F.linear(F.gelu(u, approximate="tanh" if tanh else "none"), w.w2, w.b2)
