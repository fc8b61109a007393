"""Halves of a block with what stands around them, for graphs that are made for inference.

    n = LayerNorm(x)            scale (x - mean) / sqrt(variance + eps) + offset, of every pixel

    y = x + key_only(n)         `saccade.ops.linglo`
    y = x + feed_forward(n)     `saccade.ops.feed`

`composed` reads like that. `native` is one call of a kernel, with weights that are laid out once;
it has no backward. Outside of graphs layers make the same calls by themselves (`layers/ready.py`).
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.feed import FEED_FORWARD
from saccade.ops.linglo import KEY_ONLY
from saccade.ops.native.residual import FEED_NATIVE, KEY_ONLY_NATIVE
from saccade.ops.operator import Operator


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


def _key_only_flops(x: Any, scale: Any, offset: Any, *letters: Any) -> int:
    B, H, W, C = x
    return KEY_ONLY.flops((B, H * W, C), *letters[:-1])


def _feed_flops(x: Any, scale: Any, offset: Any, *letters: Any) -> int:
    return FEED_FORWARD.flops(x, *letters[:-1])


def _check_key_only(x: Tensor, scale: Tensor, offset: Tensor, *letters: Any) -> None:
    if KEY_ONLY.own_check is not None:
        KEY_ONLY.own_check(x, *letters[:-1])


def _check_feed(x: Tensor, scale: Tensor, offset: Tensor, *letters: Any) -> None:
    if FEED_FORWARD.own_check is not None:
        FEED_FORWARD.own_check(x, *letters[:-1])


KEY_ONLY_RESIDUAL = Operator(
    "key_only_residual",
    plain={"composed": key_only_composed},
    kernels={"native": KEY_ONLY_NATIVE},
    check=_check_key_only,
    output=lambda x, *_: x.new_empty(x.shape),
    flops=_key_only_flops,
)
FEED_RESIDUAL = Operator(
    "feed_residual",
    plain={"composed": feed_composed},
    kernels={"native": FEED_NATIVE},
    check=_check_feed,
    output=lambda x, *_: x.new_empty(x.shape),
    flops=_feed_flops,
)
