"""Prepared kernel calls of layers for inference, which are used until anything changes.

    y = residual(x, norm, layer, drop)          x + drop(layer(norm(x)))
    y = normed(x, norm)                         norm(x), of the channels of a map
    y = whole(x, layer, make)                   layer.steps(x)

Without gradients, hooks, tracers, transforms, counters and autocast, each of these is one call of a
kernel with pointers that were prepared before. `Watch` checks whether they are still valid: it
compares every module, attribute and tensor with what it was, which takes a few microseconds. If
anything differs, the modules are called as usual.

In a graph that is made for inference, `residual` is an operator (`saccade.ops.residual`).
"""

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter, is_
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torchvision.models.feature_extraction import NodePathTracer

from saccade.layers.norm import of_channels
from saccade.layers.untouched import HOOKS, hooked_everywhere, inner, passes, untouched
from saccade.ops.modes import transformed
from saccade.ops.native.residual import Norm, NormOfMap, serves
from saccade.ops.operator import forced

_METHODS = attrgetter("forward", "__call__")


class Watch:
    """Detects changes of modules: of their classes, attributes, hooks, parts, tensors."""

    def __init__(self, *roots: nn.Module):
        self.roots = roots
        self.modules = [module for root in roots for module in root.modules()]
        self.kinds = [*map(type, self.modules)]
        self.distinct: list[Any] = [*{*self.kinds}]
        self.methods = [*map(_METHODS, self.distinct)]
        self.mapped = [kind for kind in self.distinct if any(inner(kind))]
        self.inner = [*map(inner, self.mapped)]
        self.dicts: list[dict[str, Any]] = []
        self.places: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.values: list[Any] = []
        for module in self.modules:
            own = module.__dict__
            public = [name for name in own if not name.startswith("_")]
            self._note(own, [*HOOKS, "forward", *public])
            for parts in (module._modules, module._parameters, module._buffers):
                self._note(parts, list(parts))
            self.dicts += own, module._modules, module._parameters, module._buffers
        self.sizes = [*map(len, self.dicts)]
        self.hooks = [module.__dict__[name] for module in self.modules for name in HOOKS]
        self.tensors = [value for value in self.values if isinstance(value, Tensor)]
        self.memory = self._memory()

    def _note(self, place: Any, names: Iterable[str]) -> None:
        for name in names:
            self.places.append(place)
            self.names.append(name)
            self.values.append(place.get(name))

    def _memory(self) -> list[Any]:
        tensors = self.tensors
        return [
            *map(Tensor.data_ptr, tensors),
            *map(Tensor.stride, tensors),
            *(t.shape for t in tensors),
            *(t.dtype for t in tensors),
        ]

    def holds(self, *roots: nn.Module) -> bool:
        """Whether these are the modules that are watched, and all is as it was."""
        return (
            all(map(is_, roots, self.roots))
            and all(map(is_, map(dict.get, self.places, self.names), self.values))
            and [*map(len, self.dicts)] == self.sizes
            and not any(self.hooks)
            and all(map(is_, map(type, self.modules), self.kinds))
            and [*map(_METHODS, self.distinct)] == self.methods
            and [*map(inner, self.mapped)] == self.inner
            and self._memory() == self.memory
        )


class Ready:
    """A prepared call and the watch over its modules, held by the layer.

    Copies of the layer and saved layers have none. `width` is that of the maps it was made for.
    """

    def __init__(self, call: Any, watch: Watch, width: int):
        self.call, self.watch, self.width = call, watch, width
        self.also = getattr(call, "takes", None)

    def takes(self, x: Tensor) -> bool:
        """Whether it computes such a map, B H W C."""
        return (
            x.ndim == 4
            and x.shape[3] == self.width
            and x.numel() > 0
            and (self.also is None or self.also(x))
        )

    def __call__(self, x: Tensor) -> Tensor:
        if torch.autograd._profiler_enabled():
            with torch.profiler.record_function(f"saccade::{type(self.call).__name__}"):
                return self.call(x)
        return self.call(x)

    def __reduce__(self) -> Any:
        return type(None), ()


def residual(
    x: Float[Tensor, "B H W C"], norm: nn.Module, layer: Any, drop: nn.Module
) -> Float[Tensor, "B H W C"]:
    """x + drop(layer(norm(x))); in one call where the layer can (`ready_after`)."""
    if unwatched(x) and x.is_contiguous():
        ready = layer.__dict__.get("_ready")
        if ready is None or not ready.watch.holds(layer, norm, drop):
            ready = _prepare(x, layer, partial(_make_residual, x, norm, layer, drop), norm, drop)
        if ready is not None and ready.takes(x):
            return ready(x)
    elif isinstance(x, fx.Proxy):
        return node(residual, x + drop(layer(norm(x))), x, norm, layer, drop)
    elif in_graph(x) and passes(drop) and untouched(x, layer):
        after = getattr(layer, "after", None)
        y = None if after is None else after(x, norm)
        if y is not None:
            return y
    return x + drop(layer(norm(x)))


def normed(x: Float[Tensor, "B C H W"], norm: nn.Module) -> Float[Tensor, "B C H W"]:
    """norm(x); in one call if it is a LayerNorm of every pixel's channels."""
    y = by_pixels(x, norm, _make_norm)
    if y is not None:
        return y
    return node(normed, norm(x), x, norm) if isinstance(x, fx.Proxy) else norm(x)


def whole(
    x: Float[Tensor, "B C H W"], layer: Any, make: Callable[[Tensor, Any], Any]
) -> Float[Tensor, "B D h w"]:
    """layer.steps(x); in one call where `make` (pixels, layer) gives one."""
    y = by_pixels(x, layer, make)
    if y is not None:
        return y
    return (
        node(_call_layer, layer.steps(x), x, layer) if isinstance(x, fx.Proxy) else layer.steps(x)
    )


def _call_layer(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)


def by_pixels(
    x: Float[Tensor, "B C H W"], layer: nn.Module, make: Callable[[Tensor, Any], Any]
) -> Float[Tensor, "B D h w"] | None:
    """The result of the layer's prepared call on a map in B H W C memory; None without one."""
    if not unwatched(x):
        return None
    pixels = x.permute(0, 2, 3, 1)
    if not pixels.is_contiguous():
        return None
    ready = layer.__dict__.get("_ready")
    if ready is None or not ready.watch.holds(layer):
        ready = _prepare(pixels, layer, partial(make, pixels, layer))
    if ready is None or not ready.takes(pixels):
        return None
    return ready(pixels).permute(0, 3, 1, 2)


def node(function: Callable[..., Any], y: fx.Proxy, x: fx.Proxy, *modules: nn.Module) -> Any:
    """One node, function(x, *modules), in the graph of an extractor of features.

    Whole models must give the same bits with such a graph and without. The nodes of y stay, so that
    a part's output can be extracted; extractors drop unused nodes. Outside of extractors it is y.
    """
    tracer = x.tracer
    if not isinstance(tracer, NodePathTracer):
        return y
    parts = [tracer.create_proxy("get_attr", tracer.path_of_module(m), (), {}) for m in modules]
    return tracer.create_proxy("call_function", function, (x, *parts), {})


def _prepare(
    x: Tensor, layer: nn.Module, make: Callable[[], Any], *others: nn.Module
) -> Ready | None:
    """Prepare a call for maps like x and store it; None where modules must be called.

    Modules must also be called where `make` finds parts that do not fit: then they raise the error.
    """
    layer.__dict__["_ready"] = None
    try:
        call = make()
    except (ValueError, RuntimeError, IndexError, ZeroDivisionError):
        return None
    if call is None:
        return None
    ready = layer.__dict__["_ready"] = Ready(call, Watch(layer, *others), x.shape[3])
    return ready


def _make_residual(x: Tensor, norm: nn.Module, layer: Any, drop: nn.Module) -> Any:
    make = getattr(layer, "ready_after", None)
    return make(x, norm) if make is not None and passes(drop) and untouched(x, layer) else None


def _make_norm(x: Tensor, norm: nn.Module) -> NormOfMap | None:
    if not of_channels(norm, x) or not serves(norm.weight, norm.bias):
        return None
    return NormOfMap(Norm(norm.weight, norm.bias, norm.eps))


def in_graph(x: Tensor) -> bool:
    """Whether a graph is made here, by torch.compile or torch.export, for inference on CPU."""
    return (
        torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not forced()
    )


def unwatched(x: Tensor) -> bool:
    """Whether a kernel may replace the modules on x: no gradient, hook or tracer would notice."""
    return unseen(x) and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def unseen(x: Tensor) -> bool:
    """The same, for x of any dtype and whether autocast is on or not."""
    return (
        type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and not x.is_neg()  # memory that holds -x, and none at all: operators of torch know both
        and not x._is_zerotensor()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not torch.jit.is_tracing()
        and not transformed()
        and not forced()
        and not hooked_everywhere()
    )
