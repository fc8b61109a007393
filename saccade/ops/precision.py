"""Keep softmax and long sums in at least fp32, whatever the dtype of the inputs."""

from contextlib import AbstractContextManager, nullcontext

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """fp32 for fp16 and bf16, the dtype itself for fp32 and float64."""
    return torch.promote_types(dtype, torch.float32)


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Autocast off inside the block; a null context where it is off already."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device has none."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a product with x: autocast's if it is on, which leaves float64 alone."""
    if autocasts(x.device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def hidden_logit(like: torch.Tensor) -> float:
    """A logit for keys that must get no weight; finite: a row of -inf alone would give NaN."""
    return torch.finfo(like.dtype).min / 4
