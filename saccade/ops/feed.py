"""The feed-forward half of a block, with or without a position encoding between its two products.

    h = x W1 + b1
    u = h * taps + shift      a depth-wise 3x3 (LinGlo's RP-CPE as one kernel), or u = h
    y = gelu(u) W2 + b2

`composed` is these equations in PyTorch, and holds three maps as wide as h. `native` is one fused
kernel, used where it multiplies faster than torch's library: it holds a few rows of h at a time
or, if gradients will be needed, all of h once.
"""

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.feed import NATIVE
from saccade.ops.operator import Operator


class FeedForwardWeights(NamedTuple):
    """The letters of the equation, each matrix as `nn.Linear` keeps it (out, in)."""

    w1: Float[Tensor, "J C"]
    b1: Float[Tensor, "J"]
    taps: Float[Tensor, "J 1 3 3"] | None
    shift: Float[Tensor, "J"] | None
    w2: Float[Tensor, "D J"]
    b2: Float[Tensor, "D"]


def feed_forward(
    x: Float[Tensor, "B H W C"], w: FeedForwardWeights, tanh: bool = False, backend: str = "auto"
) -> Float[Tensor, "B H W D"]:
    """Two linear layers around GELU (`tanh`: its other form) and, with `taps`, a depth-wise 3x3."""
    return FEED_FORWARD(x, *w, tanh, backend=backend)


fx.wrap("feed_forward")  # one node to torch.fx


def composed(
    x: Float[Tensor, "B H W C"], w1: Float[Tensor, "J C"], b1: Float[Tensor, "J"],
    taps: Float[Tensor, "J 1 3 3"] | None, shift: Float[Tensor, "J"] | None,
    w2: Float[Tensor, "D J"], b2: Float[Tensor, "D"], tanh: bool,
) -> Float[Tensor, "B H W D"]:  # fmt: skip
    """The same, equation by equation."""
    u = F.linear(x, w1, b1)
    if taps is not None:
        u = F.conv2d(u.permute(0, 3, 1, 2), taps, shift, padding=1, groups=len(taps))
        u = u.permute(0, 2, 3, 1)
    return F.linear(F.gelu(u, approximate="tanh" if tanh else "none"), w2, b2)


def _check(x, w1, b1, taps, shift, *rest) -> None:
    if shift is not None and taps is None:
        raise ValueError("feed_forward: a shift comes with taps, got it alone")


def _flops(x: Any, w1: Any, b1: Any, taps: Any, shift: Any, w2: Any, b2: Any, tanh: bool) -> int:
    B, H, W, C = x
    return 2 * B * H * W * w1[0] * (C + w2[0] + (9 if taps else 0))


FEED_FORWARD = Operator(
    "feed_forward",
    plain={"composed": composed},
    kernels={"native": NATIVE},
    check=_check,
    output=lambda x, w1, b1, taps, shift, w2, b2, tanh: x.new_empty(*x.shape[:3], len(w2)),
    flops=_flops,
    keeps=1,
)
