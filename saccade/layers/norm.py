"""A BatchNorm that gathers no statistics is a scale and a shift of every channel."""

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d


def scale_and_shift(
    norm: nn.BatchNorm2d | FrozenBatchNorm2d,
) -> tuple[Float[Tensor, "C"], Float[Tensor, "C"]]:
    """y = x scale + shift, at the running statistics."""
    weight, bias, mean, var = (
        cast(Tensor, t) for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    )
    scale = weight * (var + norm.eps).rsqrt()
    return scale, bias - mean * scale


def is_scale_and_shift(norm: nn.BatchNorm2d | FrozenBatchNorm2d) -> bool:
    """Whether that is all it does now: in eval mode, with statistics and parameters of its own."""
    if isinstance(norm, FrozenBatchNorm2d):
        return True
    there = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return not norm.training and all(t is not None for t in there)
