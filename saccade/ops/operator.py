"""One contract for every operator: declared once, and all that torch asks of it follows.

An operator is a pure function with an equation. Its arguments are tensors, some of which may be
absent, and then options. It is declared by

    plain      its forms in ordinary PyTorch, which autograd and tracers look into; the first is the
               reference, from which second derivatives, torch.func and portable graphs are taken,
               and whose annotations say which shapes fit to each other
    kernels    forms that are one node to everybody else and bring their own backward
    check      refuses, in one sentence, what has no meaning though the shapes fit
    output     an empty tensor like the result
    flops      the cost of the equation, whichever form computes it

and then called like a function. From the declaration come two torch operators, `saccade::NAME` and
`saccade::NAME_backward`, with their fake, autograd, vmap and FLOP rules; and the choice of the
form, which is made in `Operator.choose` and nowhere else. `backend=` forces it for one call, and
`use_backend` for a block of code.

Whatever reaches a kernel has passed `Operator.fits`: plain dense tensors of one device and one
dtype that the kernel knows, of a size that its integers can count. Small tables (positions) come
in the dtype of the sums; everything else is made contiguous, unless the kernel reads strides.
"""

import inspect
import types
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, get_args

import torch
import torch._decomp
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.derivatives import autograd_inside, sample_by_sample, second
from saccade.ops.modes import counting, for_onnx, transformed
from saccade.ops.precision import autocasts, no_autocast, wide
from saccade.ops.shapes import Shapes

LIBRARY = torch.library.Library("saccade", "FRAGMENT")
OPERATORS: dict[str, "Operator"] = {}
MOST = 2**31  # elements of a tensor: kernels count with 32 bits
PLAIN_TENSORS = (
    Tensor,
    nn.Parameter,
    FakeTensor,
    FunctionalTensor,
)  # the last two are tracers' own

TRACED = (
    "this trace calls operators of saccade: import saccade before torch.jit.load, "
    "or trace under saccade.ops.operator.use_backend('plain') for a file that runs without it"
)

_backend: ContextVar[str] = ContextVar("saccade_backend", default="auto")


@contextmanager
def use_backend(name: str) -> Generator[None]:
    """Compute by this backend wherever an operator has it: "plain", "native", "triton", ...

    "plain" takes the cheapest plain form of every operator: ordinary PyTorch, also in exported
    graphs, which then run without saccade. An operator without such a form chooses as always.
    """
    known = {"auto", "plain", *(form for op in OPERATORS.values() for form in op.forms)}
    if name not in known:
        raise ValueError(f"use_backend: no operator has the backend {name!r}; try one of {known}")
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def forced() -> bool:
    """Whether `use_backend` names a backend here."""
    return _backend.get() != "auto"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A form of an operator that autograd does not look into.

    forward     (out, residuals, *inputs): fills `out` and `residuals`, what the backward will need
                beside the inputs; () if none will come
    backward    (grad, residuals, needs, *inputs): the gradients of the tensors, None for absent
                ones; `needs` says which are needed. None: it serves where no backward can come
    takes       (*inputs): whether it computes such a call; what `Operator.fits` asks comes before
    about       what it takes, in words
    computes    the plain form that it stands for, to be chosen where that is the cheapest
    ready       whether it can be called on this machine
    device      where its tensors must be; None: anywhere
    dtypes      what they must be; None: any mixture
    keeps       (out, *inputs): empty tensors for what the backward will need beside the inputs, as
                many as the operator says; None: it needs nothing
    saves       whether the backward needs the output; then `residuals` begins with it
    strided     the inputs (and "grad") of which it reads the strides
    """

    forward: Callable[..., None]
    backward: Callable[..., Sequence[Tensor | None]] | None
    takes: Callable[..., bool]
    about: str
    computes: str = ""
    ready: Callable[[], bool] = lambda: True
    device: str | None = "cpu"
    dtypes: tuple[torch.dtype, ...] | None = (torch.float32,)
    keeps: Callable[..., tuple[Tensor, ...]] | None = None
    saves: bool = False
    strided: tuple[str, ...] = ()


class Operator:
    """A function with one equation and several forms that compute it. See the module's text."""

    def __init__(
        self,
        name: str,
        *,
        plain: dict[str, Callable[..., Tensor]],
        kernels: dict[str, Kernel],
        output: Callable[..., Tensor],
        flops: Callable[..., int],
        check: Callable[..., None] | None = None,
        keeps: int = 0,
        tables: tuple[str, ...] = (),
        like_input: tuple[str, ...] = (),
        mixed: bool = False,
        autocast: bool = False,
        cheapest: Callable[..., str] | None = None,
    ):
        """Declare an operator; see the module's text for the first arguments.

        Args:
            keeps: how many tensors a kernel that keeps any keeps for the backward.
            tables: the small inputs that kernels get in the dtype of the sums.
            like_input: the inputs whose gradients lie in memory as they do; others are contiguous.
            mixed: whether inputs that are no tables may be of several dtypes.
            autocast: whether autocast casts the inputs that are no tables; without, the plain form
                runs under autocast.
            cheapest: (*inputs) to the plain form to take; without, the reference.
        """
        self.name, self.plain, self.kernels = name, plain, kernels
        self.own_check, self.output, self.flops = check or (lambda *_: None), output, flops
        self.keeps, self.autocast = keeps, autocast
        self.forms = (*plain, *kernels)
        reference = next(iter(plain))
        self.reference = plain[reference]
        self.cheapest = cheapest or (lambda *inputs: reference)
        parameters = inspect.signature(self.reference).parameters
        kinds = {p.name: _kind(p) for p in parameters.values()}
        self.names = [n for n, kind in kinds.items() if kind.startswith("Tensor")]
        if unknown := {*tables, *like_input} - {*self.names}:
            raise ValueError(f"{name}: tables and like_input name tensors, got {sorted(unknown)}")
        one_dtype = () if mixed else {*self.names} - {*tables}
        self.shapes = Shapes({n: parameters[n].annotation for n in self.names}, one_dtype)
        self.tables = [n in tables for n in self.names]
        self.like_input = [n in like_input for n in self.names]
        self.count, self.arity = len(self.names), len(kinds)
        self._register(", ".join(f"{kind} {n}" for n, kind in kinds.items()))
        OPERATORS[name] = self

    def __call__(self, *inputs: Any, backend: str = "auto") -> Tensor:
        """Compute it by the best form, or by the one that `backend` names."""
        if not torch.compiler.is_compiling():  # there, sizes may be symbols
            self.check(*inputs)
        device = inputs[0].device
        if self.autocast and autocasts(device):
            dtype = torch.get_autocast_dtype(device.type)
            tensors = [
                t if t is None or table or t.dtype == torch.float64 else t.to(dtype)
                for t, table in zip(inputs[: self.count], self.tables, strict=True)
            ]
            with no_autocast(device):
                return self(*tensors, *inputs[self.count :], backend=backend)
        form = self.choose(inputs, backend)
        if form in self.plain and not counting():
            return self.plain[form](*inputs)
        if torch.jit.is_tracing():
            warnings.warn(TRACED, RuntimeWarning, stacklevel=2)
        results = self._call(*inputs, form, self._keeps(form, inputs))
        return results[0] if self.keeps else results

    def check(self, *inputs: Any) -> None:
        """Refuse inputs that the equation has no meaning for."""
        self.shapes.check(self.name, inputs[: self.count])
        self.own_check(*inputs)

    def with_residuals(self, *inputs: Any, backend: str = "auto") -> tuple[Tensor, ...] | None:
        """The result, and what a kernel keeps beside it; None if none keeps anything of this call.

        What is kept has no gradient.
        """
        if not torch.compiler.is_compiling():
            self.check(*inputs)
        form = self.choose(inputs, backend)
        return self._call(*inputs, form, True) if self._keeps(form, inputs) else None

    # -- the choice --------------------------------------------------------------------------

    def choose(self, inputs: Sequence[Any], backend: str = "auto") -> str:
        """The form that computes this call: the one asked for, or the first that takes it.

        In an exported graph that may run elsewhere it is "auto", chosen anew where the graph runs.
        """
        choice = _backend.get() if backend == "auto" else backend
        exporting = torch.compiler.is_exporting() and backend != "best"
        if choice == "plain":
            return self.cheapest(*inputs)
        if choice in self.forms:
            return self._forced(choice, inputs)
        if backend not in ("auto", "best"):
            raise ValueError(
                f"{self.name}: backend must be 'auto', 'plain' or one of {self.forms}, "
                f"got {backend=}"
            )
        if exporting:
            return self.cheapest(*inputs) if for_onnx() else "auto"
        if transformed():
            return self.cheapest(*inputs)
        cheapest = self.cheapest(*inputs)
        for name, kernel in self.kernels.items():
            if kernel.computes in ("", cheapest) and self.fits(kernel, inputs) and kernel.ready():
                return name
        return cheapest

    def ready(self) -> list[str]:
        """The forms that can be called on this machine, in the order in which they are tried."""
        kernels = [name for name, kernel in self.kernels.items() if kernel.ready()]
        return [*kernels, *self.plain]

    def fits(self, kernel: Kernel, inputs: Sequence[Any]) -> bool:
        """Whether a kernel may be handed these inputs: all that pointers do not say."""
        first = inputs[0]
        device, dtype, grad = first.device, first.dtype, False
        if kernel.device is not None and device.type != kernel.device:
            return False
        if kernel.dtypes is not None and dtype not in kernel.dtypes:
            return False
        if not self.autocast and autocasts(device):
            return False
        for t, table in zip(inputs, self.tables, strict=False):
            if t is None:
                continue
            if type(t) not in PLAIN_TENSORS or t.layout is not torch.strided:
                return False
            if t.device != device or not 0 < t.numel() < MOST or not t.is_floating_point():
                return False
            if t.dtype != dtype and not table and kernel.dtypes is not None:
                return False
            grad = grad or t.requires_grad
        if kernel.backward is None and grad and torch.is_grad_enabled():
            return False
        return kernel.takes(*inputs)

    def _forced(self, form: str, inputs: Sequence[Any]) -> str:
        kernel = self.kernels.get(form)
        if kernel is None or (self.fits(kernel, inputs) and kernel.ready()):
            return form
        shapes = [tuple(t.shape) if t is not None else None for t in inputs[: self.count]]
        raise ValueError(
            f"{self.name}: backend {form!r} takes {kernel.about}, on plain tensors of one device "
            f"and dtype, where it is there ({kernel.ready()=}), got {shapes} "
            f"{inputs[0].dtype} {list(inputs[self.count :])}; try backend='auto'"
        )

    def _keeps(self, form: str, inputs: Sequence[Any]) -> bool:
        """Whether the forward should keep what its backward needs; else that is computed again."""
        if form not in self.kernels or not torch.is_grad_enabled() or torch.jit.is_tracing():
            return False
        return any(t is not None and t.requires_grad for t in inputs[: self.count])

    # -- the two torch operators -------------------------------------------------------------

    def _register(self, arguments: str) -> None:
        results = ", ".join(["Tensor"] * (1 + self.keeps))
        gradients = ", ".join(["Tensor"] * self.count)
        residuals = "".join(f", Tensor residual{i}" for i in range(self.keeps))
        name, back = f"saccade::{self.name}", f"saccade::{self.name}_backward"
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
        LIBRARY.define(
            f"{self.name}({arguments}, str backend, bool keep) -> ({results})", tags=tags
        )
        LIBRARY.define(
            f"{self.name}_backward(Tensor grad, {arguments}, Tensor? out{residuals}, str backend, "
            f"bool[] needs) -> ({gradients})",
            tags=tags,
        )
        for op, run, fake in (
            (name, self._forward, self._fake),
            (back, self._backward, self._fake_backward),
        ):
            torch.library.impl(op, "default", run, lib=LIBRARY)
            torch.library.register_fake(op, fake, lib=LIBRARY)
        packet = getattr(torch.ops.saccade, self.name)
        packet_back = getattr(torch.ops.saccade, f"{self.name}_backward")
        self._call, self._call_backward = packet.default, packet_back.default
        for op, call in ((name, self._call), (back, self._call_backward)):
            torch.library.register_vmap(op, sample_by_sample(call), lib=LIBRARY)
        torch.library.register_autograd(
            name, self._differentiate, setup_context=self._save, lib=LIBRARY
        )
        torch.library.register_autograd(
            back, self._differentiate_again, setup_context=self._save_again, lib=LIBRARY
        )
        # With a meta function of its own beside it, tracers do not take the decomposition for one.
        torch._decomp.register_decomposition(self._call)(self._decomposed)
        torch._decomp.meta_table[self._call] = self._fake
        register_flop_formula(packet)(lambda *args, **_: self.flops(*args[: self.arity]))
        register_flop_formula(packet_back)(
            lambda grad, *args, **_: 2 * self.flops(*args[: self.arity])
        )

    def _forward(self, *args: Any) -> Any:
        *inputs, backend, keep = args
        out, *residuals = rooms = self._empty(*args)
        kernel = self._kernel(backend, inputs)
        if kernel is None:
            out.copy_(self._plain(backend, inputs)(*inputs))
        else:
            keep = keep and kernel.keeps is not None and kernel is self.kernels.get(backend)
            kernel.forward(out, tuple(residuals) if keep else (), *self._prepared(kernel, inputs))
        return tuple(rooms) if self.keeps else out

    def _fake(self, *args: Any) -> Any:
        rooms = self._empty(*args)
        return tuple(rooms) if self.keeps else rooms[0]

    def _empty(self, *args: Any) -> list[Tensor]:
        """The output, and room for what is kept; empty tensors for what is not."""
        *inputs, backend, keep = args
        self.check(*inputs)
        out = self.output(*inputs)
        keeps = self.kernels[backend].keeps if keep and backend in self.kernels else None
        if keeps is not None:
            return [out, *keeps(out, *inputs)]
        return [out, *(out.new_empty(0) for _ in range(self.keeps))]

    def _backward(self, grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
        with no_autocast(grad.device):  # as the forward was, wherever the backward is called
            return self._gradients(grad, *args)

    def _gradients(self, grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
        inputs, (out, *residuals, backend, needs) = args[: self.arity], args[self.arity :]
        self.check(*inputs)
        shapes = [_shape_of(t) if isinstance(t, Tensor) else t for t in inputs]  # without memory
        like = self.output(*shapes)
        if any(t is not None and not _alike(t, like) for t in (grad, out)):
            raise ValueError(
                f"{self.name}_backward: grad must be like the output, {tuple(like.shape)} "
                f"{like.dtype}, got {tuple(grad.shape)} {grad.dtype} {grad.device}"
            )
        if grad.device != inputs[0].device:
            raise ValueError(f"{self.name}_backward: grad must be on {inputs[0].device}")
        kernel = self._kernel(backend, inputs)
        if kernel is None or kernel.backward is None:
            gradients = self._pulled_back(self._plain(backend, inputs), grad, inputs, needs)
        else:
            ready = self._prepared(kernel, inputs)
            saved = tuple(t.contiguous() for t in residuals) if kernel.keeps is not None else ()
            room = () if kernel.keeps is None else kernel.keeps(like, *shapes)
            known = all(_alike(t, r) for t, r in zip(saved, room, strict=True))
            if not known or (kernel.saves and out is None):  # the forward knew of no backward
                out = self.output(*inputs)
                saved = () if kernel.keeps is None else kernel.keeps(out, *inputs)
                kernel.forward(out, saved, *ready)
            if kernel.saves:
                saved = (out, *saved)
            grad = grad if "grad" in kernel.strided else grad.contiguous()
            gradients = kernel.backward(grad, saved, needs, *ready)
        return tuple(
            self._laid_out(g, t, like) if w and t is not None and g is not None else _nothing(grad)
            for g, t, w, like in zip(gradients, inputs, needs, self.like_input, strict=False)
        )

    def _fake_backward(self, grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
        inputs, needs = args[: self.count], args[-1]
        return tuple(
            (torch.empty_like(t) if like else t.new_empty(t.shape))
            if w and t is not None
            else _nothing(grad)
            for t, w, like in zip(inputs, needs, self.like_input, strict=True)
        )

    def _laid_out(self, gradient: Tensor, t: Tensor, like_input: bool) -> Tensor:
        gradient = gradient.to(t.dtype)
        if like_input and gradient.stride() != t.stride():
            alike = torch.empty_like(t)
            return gradient if gradient.stride() == alike.stride() else alike.copy_(gradient)
        return gradient if like_input else gradient.contiguous()

    def _kernel(self, backend: str, inputs: Sequence[Any]) -> Kernel | None:
        """The kernel of a backend, None for a plain form.

        A graph's "auto" is decided here. So is a kernel that does not take the call, whoever asked
        for it: a graph may have been made on another machine.
        """
        kernel = self.kernels.get(backend)
        if backend == "auto" or (kernel and not (kernel.ready() and self.fits(kernel, inputs))):
            return self.kernels.get(self.choose(inputs, "best"))
        return kernel

    def _plain(self, backend: str, inputs: Sequence[Any]) -> Callable[..., Tensor]:
        return self.plain[backend if backend in self.plain else self.cheapest(*inputs)]

    def _prepared(self, kernel: Kernel, inputs: Sequence[Any]) -> list[Any]:
        """What the kernel reads: tables in the dtype of the sums, the rest contiguous or as is."""
        dtype = wide(inputs[0].dtype)
        ready = list(inputs)
        for i, (name, table) in enumerate(zip(self.names, self.tables, strict=True)):
            t = inputs[i]
            if t is not None and table:
                ready[i] = t.to(dtype).contiguous()
            elif t is not None and name not in kernel.strided:
                ready[i] = t.contiguous()
        return ready

    # -- derivatives -------------------------------------------------------------------------

    def _save(self, ctx: Any, inputs: tuple, output: Any) -> None:
        *arguments, ctx.backend, _ = inputs
        out, *residuals = output if self.keeps else (output,)
        kernel = self.kernels.get(ctx.backend)
        ctx.options = arguments[self.count :]
        ctx.mark_non_differentiable(*residuals)
        ctx.set_materialize_grads(False)  # nobody asks for the gradients of the residuals
        saved = out if kernel is not None and kernel.saves else None
        ctx.save_for_backward(*arguments[: self.count], saved, *residuals)

    def _differentiate(self, ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (self.arity + 2)
        saved = ctx.saved_tensors  # once: checkpointing gives them out once
        tensors, rest = saved[: self.count], saved[self.count :]
        needs = list(ctx.needs_input_grad[: self.count])
        gradients = self._call_backward(grad, *tensors, *ctx.options, *rest, ctx.backend, needs)
        pairs = zip(gradients, tensors, needs, strict=True)
        nothing = (None,) * (len(ctx.options) + 2)
        return *(g if w and t is not None else None for g, t, w in pairs), *nothing

    def _save_again(self, ctx: Any, inputs: tuple, output: Any) -> None:
        grad, *rest = inputs
        ctx.options, ctx.needs = rest[self.count : self.arity], rest[-1]
        ctx.save_for_backward(grad, *rest[: self.count])

    def _differentiate_again(self, ctx: Any, *weights: Tensor | None) -> tuple[Tensor | None, ...]:
        """Second derivatives are rarely needed: torch.func takes them from the reference."""
        grad, *tensors = ctx.saved_tensors

        def plain(*tensors: Tensor | None) -> Tensor:
            return self.reference(*tensors, *ctx.options)

        weights = tuple(w if needed else None for w, needed in zip(weights, ctx.needs, strict=True))
        return *second(plain, grad, tensors, weights), *[None] * (len(ctx.options) + self.keeps + 3)

    def _pulled_back(
        self, plain: Callable[..., Tensor], grad: Tensor, inputs: Sequence[Any], needs: list[bool]
    ) -> list[Tensor | None]:
        """The gradients of a plain form, by autograd, which is off inside an operator."""
        with autograd_inside():
            tensors = [
                t if t is None else t.detach().requires_grad_(w)
                for t, w in zip(inputs[: self.count], needs, strict=True)
            ]
            y = plain(*tensors, *inputs[self.count :])
            chosen = [t for t in tensors if t is not None and t.requires_grad]
            gradients = iter(torch.autograd.grad(y, chosen, grad, materialize_grads=True))
        return [next(gradients) if t is not None and t.requires_grad else None for t in tensors]

    def _decomposed(self, *args: Any, **settings: Any) -> Any:
        """The reference instead, for graphs that run without saccade, such as ONNX's."""
        y = self.reference(*args[: self.arity])
        return (y, *(y.new_empty(0) for _ in range(self.keeps))) if self.keeps else y


def _alike(t: Tensor, other: Tensor) -> bool:
    return t.shape == other.shape and t.dtype == other.dtype


def _shape_of(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _kind(parameter: inspect.Parameter) -> str:
    """The schema's word for a parameter's annotation."""
    kind = parameter.annotation
    options = [k for k in get_args(kind) if k is not types.NoneType] or [kind]
    word = {int: "int", bool: "bool", str: "str", float: "float"}.get(options[0], "Tensor")
    return f"{word}?" if types.NoneType in get_args(kind) else word
