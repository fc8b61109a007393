"""What torch is doing around a call: transforming, counting or exporting it."""

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import _FlopCounterMode


def transformed() -> bool:
    """Whether torch.func (vmap, jacrev, ...) or forward-mode AD is active: both need plain forms.

    False in a compiled graph, in which both are resolved already.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def counting() -> bool:
    """Whether torch's FLOP counter is on; it then sees each plain form as one operator, too."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return False
    return any(isinstance(mode, _FlopCounterMode) for mode in _get_current_dispatch_mode_stack())


@torch.compiler.assume_constant_result
def for_onnx() -> bool:
    """Whether the graph goes to ONNX, which has no operators of ours."""
    return torch.onnx.is_in_onnx_export()
