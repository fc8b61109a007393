"""A linear map of every pixel, by the faster of two products.

    y = x W^T + b      dx = g W      dW = g^T x      db = sum over pixels of g

By the kernel of `saccade.ops.native` where that beats the library which torch calls (see there), or
by `F.linear`.
"""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.linear import NATIVE
from saccade.ops.operator import Operator


def linear(
    x: Float[Tensor, "*B C"],
    weight: Float[Tensor, "D C"],
    bias: Float[Tensor, "D"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*B D"]:
    """What F.linear gives."""
    return LINEAR(x, weight, bias, backend=backend)


fx.wrap("linear")  # one node to torch.fx


def fuses(x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"]) -> bool:
    """Whether our own product takes such a call and is the faster one here."""
    return LINEAR.choose((x, weight, None)) == "native"


def _torch(
    x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"], bias: Float[Tensor, "D"] | None
) -> Float[Tensor, "*B D"]:
    return F.linear(x, weight, bias)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    fit = weight.ndim == 2 and x.ndim > 0 and x.shape[-1] == weight.shape[1]
    present = [x, weight] if bias is None else [x, weight, bias]
    fit = fit and (bias is None or bias.shape == weight.shape[:1])
    if not fit or any(t.device != x.device for t in present):
        kinds = [f"{tuple(t.shape)} on {t.device}" for t in present]
        raise ValueError(f"linear: x ends in C, weight is D C and bias D, got {', '.join(kinds)}")


def _flops(x: Any, weight: Any, bias: Any) -> int:
    return 2 * math.prod(x[:-1]) * weight[0] * weight[1]


LINEAR = Operator(
    "linear",
    plain={"torch": _torch},
    kernels={"native": NATIVE},
    check=_check,
    output=lambda x, weight, bias: x.new_empty(*x.shape[:-1], len(weight)),
    flops=_flops,
)
