"""Whether a layer may hand its sub-modules' parameters to an operator instead of calling them.

It may if each of them is exactly the plain layer that it was built as. One that was replaced,
wrapped, subclassed, hooked, patched, pruned, parametrised, quantised, sharded, or cast or moved
apart from its neighbours is called like any module. `untouched` decides it for all layers.
"""

from collections.abc import Mapping
from types import MethodType
from typing import Any, TypeGuard, TypeVar

import torch
from timm.layers import DropPath, LayerNorm2d
from torch import Tensor, fx, nn
from torch.nn.modules import module as everywhere
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.module_tracker import ModuleTracker
from torchvision.ops import FrozenBatchNorm2d

from saccade.ops.linear import linear
from saccade.ops.operator import PLAIN_TENSORS
from saccade.ops.precision import autocasts

Kind = TypeVar("Kind", bound=nn.Module)

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# What a forward goes through: that of our layers, and that of a convolution.
INNER = ("on_map", "steps", "_conv_forward")
_CALL = nn.Module.__call__
_FORWARD: dict[type[nn.Module], object] = {}  # the classes that operators read, as they were built
_METHODS: dict[type[nn.Module], list[object]] = {}  # of those that have `INNER` ones


def readable(kind: type[Kind]) -> type[Kind]:
    """Decorator: the parameters and buffers of this class determine all that it computes."""
    forward: Any = kind.forward
    patched = kind.__module__.startswith("torch.") and not forward.__module__.startswith("torch.")
    _FORWARD[kind] = None if patched else forward
    return note_methods(kind)


def note_methods(kind: type[Kind]) -> type[Kind]:
    """Note how a class computes; `as_built` compares."""
    if any(hasattr(kind, name) for name in INNER):
        _METHODS[kind] = inner(kind)
    return kind


def inner(kind: type[nn.Module]) -> list[object]:
    """The methods that a class computes by, beside its forward."""
    return [getattr(kind, name, None) for name in INNER]


for _kind in (
    nn.Linear, nn.Conv2d, nn.BatchNorm2d, FrozenBatchNorm2d, nn.LayerNorm, LayerNorm2d, nn.GELU,
    nn.ModuleList,
):  # fmt: skip
    readable(_kind)
_PLAIN: dict[type[nn.Module], object] = {k: k.forward for k in (nn.ReLU, nn.Sequential)}
_PASS: dict[type[nn.Module], object] = {kind: kind.forward for kind in (nn.Identity, DropPath)}


def untouched(x: Tensor, *modules: nn.Module | None) -> bool:
    """Whether these modules, with all inside them, are as they were built, and fit the map x.

    Args:
        x: what they would be called with; their parameters must be of its dtype and device (or,
            under autocast, of one dtype that is cast to another's).
        modules: plain layers, or layers declared `readable`; None stands for one that is absent.
    """
    if isinstance(x, fx.Proxy) or hooked_everywhere():
        return False
    autocast = autocasts(x.device)
    return all(_whole(module, x, autocast) for module in modules)


def _whole(module: nn.Module | None, x: Tensor, autocast: bool) -> bool:
    """Whether it and all that it holds are plain."""
    if module is None:
        return True
    if not _plain(module, x, autocast):
        return False
    return all(_whole(part, x, autocast) for part in module._modules.values())


def _plain(module: nn.Module, x: Tensor, autocast: bool) -> bool:
    if not as_built(module, _FORWARD):
        return False
    # An affine norm keeps statistics beside its parameters; a plain layer has no buffers.
    if module._buffers and not isinstance(module, (_NormBase, FrozenBatchNorm2d)):
        return False
    frozen = isinstance(module, FrozenBatchNorm2d)
    for p in (module._buffers if frozen else module._parameters).values():
        if p is None:
            continue
        if type(p) not in PLAIN_TENSORS or p.device != x.device:
            return False
        if p.dtype != x.dtype and not autocast:
            return False
    return "weight" not in module.__dict__ and "bias" not in module.__dict__


def as_built(module: nn.Module, forwards: Mapping[type[nn.Module], object]) -> bool:
    """Whether it is of one of these classes, neither patched nor hooked."""
    kind = type(module)
    forward = module.forward
    if kind not in forwards or not isinstance(forward, MethodType):
        return False
    # The bound method's function: of an instance's own method, or a patched class, it is another.
    # Not by getattr with a default, which torch.compile takes for the default.
    if forward.__func__ is not forwards[kind]:
        return False
    if kind in _METHODS and _patched_inside(module):
        return False
    if kind.__call__ is not _CALL and not torch.compiler.is_compiling():  # exporters patch it
        return False
    # As HOOKS has them; one by one, for it is asked some hundred times in a step.
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _patched_inside(module: nn.Module) -> bool:
    """Whether it, or its class, has another of the methods that its forward goes through."""
    kind, own = type(module), module.__dict__
    return any(name in own for name in INNER) or (
        not torch.compiler.is_compiling() and inner(kind) != _METHODS[kind]
    )


def built(module: nn.Module) -> bool:
    """Whether it is a plain layer, or one that was declared readable, that nobody hooked."""
    return any(as_built(module, kinds) for kinds in (_FORWARD, _PLAIN, _PASS))


def passes(module: nn.Module) -> bool:
    """Whether its output is its input: an Identity, or a DropPath that drops nothing now."""
    return as_built(module, _PASS) and not (module.training and isinstance(module, DropPath))


def plain(module: nn.Module, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether it is a ReLU or a Sequential that nobody hooked or patched, as asked for."""
    return type(module) is kind and as_built(module, _PLAIN)


def hooked_everywhere() -> bool:
    """Whether somebody hooked or patched all modules; FLOP counters only note their names."""
    if nn.Module.__call__ is not _CALL and not torch.compiler.is_compiling():
        return True
    for name in HOOKS:
        for hook in getattr(everywhere, f"_global{name}").values():
            if not isinstance(getattr(hook, "__self__", None), ModuleTracker):
                return True
    return False


def pointwise(module: nn.Module | None, bias: bool = False) -> TypeGuard[nn.Conv2d]:
    """Whether it is a 1 x 1 convolution of which the matrix (and a bias, if allowed) is all."""
    return (
        type(module) is nn.Conv2d
        and module.kernel_size == module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
        and module.weight.shape[2:] == (1, 1)
        and (bias or module.bias is None)
    )


def depthwise3x3(module: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """Whether it is a depth-wise 3 x 3 convolution of which weight and bias are all."""
    return (
        type(module) is nn.Conv2d
        and module.kernel_size == (3, 3)
        and module.stride == module.padding == module.dilation == (1, 1)
        and module.groups == module.in_channels == module.out_channels
        and module.weight.shape == (module.groups, 1, 3, 3)
        and module.padding_mode == "zeros"
    )


def applied(layer: Any, x: Tensor) -> Tensor:
    """The output of a linear layer, by the faster product if the layer is untouched."""
    return linear(x, layer.weight, layer.bias) if untouched(x, layer) else layer(x)
