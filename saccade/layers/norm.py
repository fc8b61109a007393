"""Norms as numbers: what BatchNorm and LayerNorm do, for those who do it in their stead."""

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from saccade.layers.untouched import untouched
from saccade.ops.native.residual import Norm


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


def of_channels(x: Tensor, norm: nn.Module) -> Norm | None:
    """The numbers of a plain LayerNorm over the last axis of x; None of any other norm.

    timm's LayerNorm2d counts as one: its last axis is the channels of a map.
    """
    if not isinstance(norm, nn.LayerNorm) or norm.normalized_shape != x.shape[-1:]:
        return None
    if norm.weight is None or norm.bias is None or not untouched(x, norm):
        return None
    return Norm(norm.weight, norm.bias, norm.eps)
