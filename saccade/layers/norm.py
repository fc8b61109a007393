"""The numbers behind BatchNorm and LayerNorm, for kernels that compute them."""

from typing import TypeGuard, cast

from jaxtyping import Float
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from saccade.layers.untouched import untouched


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
    """Whether the norm is a fixed scale and shift: in eval mode, with running statistics."""
    if isinstance(norm, FrozenBatchNorm2d):
        return True
    there = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return not norm.training and all(t is not None for t in there)


def of_channels(norm: nn.Module, x: Tensor) -> TypeGuard[nn.LayerNorm]:
    """Whether it is a plain LayerNorm, with scale and offset, over the last axis of x.

    timm's LayerNorm2d counts as one: its last axis is the channels of a map.
    """
    if not isinstance(norm, nn.LayerNorm) or norm.normalized_shape != x.shape[-1:]:
        return False
    return norm.weight is not None and norm.bias is not None and untouched(x, norm)
