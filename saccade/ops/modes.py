"""What torch is doing around a call: transforming, counting or exporting it."""

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import _FlopCounterMode


def transformed() -> bool:
    """Within torch.func (vmap, jacrev, ...) or forward-mode derivatives: they want plain operators.

    A compiled graph has already resolved both.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def counting() -> bool:
    """Whether torch's FLOP counter is watching; then plain forms, too, come as one operator."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return False
    return any(isinstance(mode, _FlopCounterMode) for mode in _get_current_dispatch_mode_stack())


@torch.compiler.assume_constant_result
def for_onnx() -> bool:
    """Whether the graph goes to ONNX, which has no operators of ours."""
    return torch.onnx.is_in_onnx_export()
