"""Halves of a block with their norm and skip connection, for inference graphs.

    n = LayerNorm(x)            scale (x - mean) / sqrt(variance + eps) + offset, of every pixel

    y = x + key_only(n)         `saccade.ops.linglo`
    y = x + feed_forward(n)     `saccade.ops.feed`

`composed` is these equations in PyTorch. `native` is one call of a kernel, with weights that are
laid out once; it has no backward. Outside of graphs, layers make the same calls by themselves
(`layers/ready.py`).
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.feed import FEED_FORWARD
from saccade.ops.linglo import KEY_ONLY
from saccade.ops.native.residual import FEED_NATIVE, KEY_ONLY_NATIVE
from saccade.ops.operator import Kernel, Operator


def key_only_composed(
    x: Float[Tensor, "B H W C"], scale: Float[Tensor, "C"], offset: Float[Tensor, "C"],
    wk: Float[Tensor, "C C"], bk: Float[Tensor, "C"], wv: Float[Tensor, "C C"],
    bv: Float[Tensor, "C"], ws: Float[Tensor, "h C"], u1: Float[Tensor, "C C"],
    b1: Float[Tensor, "C"], u2: Float[Tensor, "C C"], b2: Float[Tensor, "C"], eps: float,
) -> Float[Tensor, "B H W C"]:  # fmt: skip
    """Norm, attention over all pixels, sum."""
    n = F.layer_norm(x, x.shape[3:], scale, offset, eps).flatten(1, 2)
    return x + KEY_ONLY(n, wk, bk, wv, bv, ws, u1, b1, u2, b2).unflatten(1, x.shape[1:3])


def feed_composed(
    x: Float[Tensor, "B H W C"], scale: Float[Tensor, "C"], offset: Float[Tensor, "C"],
    w1: Float[Tensor, "J C"], b1: Float[Tensor, "J"], taps: Float[Tensor, "J 1 3 3"] | None,
    shift: Float[Tensor, "J"] | None, w2: Float[Tensor, "C J"], b2: Float[Tensor, "C"],
    tanh: bool, eps: float,
) -> Float[Tensor, "B H W C"]:  # fmt: skip
    """Norm, feed-forward, sum."""
    n = F.layer_norm(x, x.shape[3:], scale, offset, eps)
    return x + FEED_FORWARD(n, w1, b1, taps, shift, w2, b2, tanh)


def _residual(name: str, inner: Operator, composed: Any, native: Kernel, tokens: bool) -> Operator:
    """x + inner(LayerNorm(x)), which refuses and counts what `inner` does."""

    def flops(shape: Any, scale: Any, offset: Any, *letters: Any) -> int:
        B, H, W, C = shape
        return inner.flops((B, H * W, C) if tokens else shape, *letters[:-1])

    return Operator(
        name,
        plain={"composed": composed},
        kernels={"native": native},
        check=lambda x, scale, offset, *letters: inner.own_check(x, *letters[:-1]),
        output=lambda x, *_: x.new_empty(x.shape),
        flops=flops,
    )


KEY_ONLY_RESIDUAL = _residual(
    "key_only_residual", KEY_ONLY, key_only_composed, KEY_ONLY_NATIVE, tokens=True
)
FEED_RESIDUAL = _residual("feed_residual", FEED_FORWARD, feed_composed, FEED_NATIVE, tokens=False)
