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


def is_scale_and_shift(norm: nn.BatchNorm2d | FrozenBatchNorm2d, width: int) -> bool:
    """Whether the norm is a fixed scale and shift of so many channels: in eval mode, with all of
    its numbers."""
    there = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    moves = norm.training and not isinstance(norm, FrozenBatchNorm2d)
    return not moves and all(t is not None and t.shape == (width,) for t in there)


def of_channels(norm: nn.Module, x: Tensor) -> TypeGuard[nn.LayerNorm]:
    """Whether it is a plain LayerNorm, with scale and offset, over the last axis of x.

    timm's LayerNorm2d counts as one: its last axis is the channels of a map.
    """
    if not isinstance(norm, nn.LayerNorm):
        return False
    there, width = (norm.weight, norm.bias), x.shape[-1:]
    if norm.normalized_shape != width or any(t is None or t.shape != width for t in there):
        return False
    return untouched(x, norm)
