"""Whether a layer's parameters say all that it does, so that an operator may read them instead."""

from typing import TypeGuard, TypeVar

from torch import Tensor, nn
from torch.nn.modules import module as anywhere

from saccade.ops.linear import linear

Kind = TypeVar("Kind", bound=nn.Module)

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def bare(module: nn.Module, kind: type[Kind]) -> TypeGuard[Kind]:
    """A plain `kind` that nobody replaced, parametrised, patched or hooked."""
    if type(module) is not kind or "forward" in module.__dict__:
        return False
    if any(getattr(module, hooks) or getattr(anywhere, f"_global{hooks}") for hooks in HOOKS):
        return False
    parameters = module._parameters.values()  # quantised or sharded ones are of a kind of their own
    return all(p is None or type(p) in (nn.Parameter, Tensor) for p in parameters)


def pointwise(module: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """A bare 1 x 1 convolution of which the matrix is all."""
    return (
        module is not None
        and bare(module, nn.Conv2d)
        and module.kernel_size == module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
        and module.bias is None
    )


def applied(layer: nn.Module, x: Tensor) -> Tensor:
    """What a linear layer gives; by the faster product, if its parameters say it all."""
    return linear(x, layer.weight, layer.bias) if bare(layer, nn.Linear) else layer(x)
