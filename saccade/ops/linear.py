"""A linear map of every pixel, by the faster of two products.

    y = x W^T + b      dx = g W      dW = g^T x      db = sum over pixels of g

By the kernel of `saccade.ops.native.linear` where that is faster than torch's library (the file
says where), else by `F.linear`.
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
    """The same as `F.linear`, by the faster product."""
    return LINEAR(x, weight, bias, backend=backend)


fx.wrap("linear")  # one node to torch.fx


def fuses(x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"]) -> bool:
    """Whether our own product takes such a call and is the faster one here."""
    return LINEAR.choose((x, weight, None)) == "native"


def _torch(
    x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"], bias: Float[Tensor, "D"] | None
) -> Float[Tensor, "*B D"]:
    return F.linear(x, weight, bias)


def _flops(x: Any, weight: Any, bias: Any) -> int:
    return 2 * math.prod(x[:-1]) * weight[0] * weight[1]


LINEAR = Operator(
    "linear",
    plain={"torch": _torch},
    kernels={"native": NATIVE},
    output=lambda x, weight, bias: x.new_empty(*x.shape[:-1], len(weight)),
    flops=_flops,
)
