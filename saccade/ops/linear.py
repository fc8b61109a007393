"""A linear map of every pixel, by the faster of two products.

    y = x W^T + b      dx = g W      dW = g^T x      db = sum over pixels of g

By the kernel of `saccade.ops.native` where that beats the library which torch calls (see there), or
by `F.linear`.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.native.linear import FEWEST, ours
from saccade.ops.native.linear_layer import linear as fused
from saccade.ops.native.linear_layer import supports
from saccade.ops.second import transformed


def linear(
    x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"], bias: Float[Tensor, "D"] | None = None
) -> Float[Tensor, "*B D"]:
    """What F.linear gives."""
    return (fused if fuses(x, weight) else F.linear)(x, weight, bias)


def fuses(x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"]) -> bool:
    """Whether the kernel takes such a call, and is the faster way here."""
    if torch.compiler.is_exporting() or transformed() or not supports(x, weight):
        return False
    return x.numel() >= FEWEST * weight.shape[1] and native.available() and pays()


@torch.compiler.assume_constant_result
def pays() -> bool:
    """Whether products of our own are the faster ones on this machine."""
    return ours()
