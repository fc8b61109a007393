"""Where low precision must not reach: softmax and long sums."""

from contextlib import AbstractContextManager, nullcontext

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """fp32 for fp16 and bf16, the dtype itself for fp32 and float64."""
    return torch.promote_types(dtype, torch.float32)


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Keep autocast from narrowing what is computed inside; nothing at all where it is off."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device knows none."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a product with x, here: autocast's, if it is on; it leaves float64 alone."""
    if autocasts(x.device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def nothing(like: torch.Tensor) -> float:
    """The logit of what is not to be seen; finite, for a line of only -inf would give NaN."""
    return torch.finfo(like.dtype).min / 4
