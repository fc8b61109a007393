"""Initial distributions of weights that torch does not have."""

import math

import torch
from torch import Tensor

_WITHIN = math.erf(2**0.5)  # share of a normal that lies within two standard deviations
_LEFT = 0.87962566103423978  # and the standard deviation of that share, to that of the whole


@torch.no_grad()
def cut_normal_(weight: Tensor, std: float) -> Tensor:
    """A normal cut at two standard deviations, by its inverse distribution function.

    torch's `trunc_normal_` redraws until all values lie inside, which takes five passes here.
    """
    return weight.uniform_(-_WITHIN, _WITHIN).erfinv_().mul_(2**0.5 * std)


def lecun_normal_(weight: Tensor) -> Tensor:
    """Unit variance out of unit variance in, by a cut normal. Outputs are the first axis."""
    return cut_normal_(weight, (weight.shape[0] / weight.numel()) ** 0.5 / _LEFT)
