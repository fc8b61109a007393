"""The contract of operators: whatever torch may do with one, by every operator and every form.

An example names an operator and gives small inputs. The operators of the package are here, and a
toy that is declared below: what it takes to add one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import (
    branches,
    feed,
    linear,
    linglo,
    neighbourhood,
    qna,
    residual,
    sasa,
    sasa_block,
    window,
)
from saccade.ops.operator import OPERATORS, Kernel, Operator, use_backend

ROOT = Path(__file__).resolve().parents[2]


# -- an operator, declared ------------------------------------------------------------------------


def _power(
    x: Float[Tensor, "B C"],
    weight: Float[Tensor, " C"],
    shift: Float[Tensor, " C"] | None,
    exponent: int,
) -> Float[Tensor, "B C"]:
    y = x**exponent * weight
    return y if shift is None else y + shift


def _power_forward(out, residuals, x, weight, shift, exponent) -> None:
    out.copy_(_power(x, weight, shift, exponent))
    if residuals:
        residuals[0].copy_(x ** (exponent - 1))


def _power_backward(grad, residuals, expected, x, weight, shift, exponent):
    (below,) = residuals
    ours = exponent * below * weight * grad, (below * x * grad).sum(0)
    return *ours, None if shift is None else grad.sum(0)


def _power_check(x, weight, shift, exponent) -> None:
    if exponent < 1:
        raise ValueError(f"power: exponents start at 1, got {exponent=}")


POWER = Operator(
    "power",
    plain={"torch": _power},
    kernels={
        "kernel": Kernel(
            forward=_power_forward,
            backward=_power_backward,
            takes=lambda x, weight, shift, exponent: exponent < 4,
            about="exponents below 4",
            dtypes=(torch.float32, torch.float64),
            keeps=lambda out, x, *rest: (x.new_empty(x.shape),),
        )
    },
    check=_power_check,
    output=lambda x, *_: x.new_empty(x.shape),
    flops=lambda x, weight, shift, exponent: 2 * exponent * x[0] * x[1],
    keeps=1,
)
del OPERATORS["power"]  # of the tests alone


def test_a_table_that_is_no_input_is_refused():
    with pytest.raises(
        ValueError, match=r"typo: tables and like_input name tensors, got \['row'\]"
    ):
        Operator(
            "typo", plain={"torch": _power}, kernels={}, output=POWER.output, flops=POWER.flops,
            tables=("row",),
        )  # fmt: skip


# -- examples -------------------------------------------------------------------------------------


class Example(NamedTuple):
    operator: Operator
    tensors: list[tuple[int, ...] | None]  # shapes; None for one that is absent
    options: tuple[Any, ...] = ()

    def inputs(self, dtype: torch.dtype = torch.float64, grad: bool = False) -> list[Any]:
        torch.manual_seed(0)
        draw = partial(torch.randn, dtype=torch.float64)
        drawn = [None if s is None else draw(s) / 2 for s in self.tensors]
        return [t if t is None else t.to(dtype).requires_grad_(grad) for t in drawn]

    def call(self, *tensors: Tensor | None, backend: str = "auto") -> Tensor:
        return self.operator(*tensors, *self.options, backend=backend)

    def reference(self, *tensors: Tensor | None) -> Tensor:
        with use_backend("plain"):
            return self.operator.reference(*tensors, *self.options)

    def dtype(self, form: str) -> torch.dtype:
        """Double precision, if the form has it."""
        kernel = self.operator.kernels.get(form)
        known = None if kernel is None else kernel.dtypes
        return torch.float64 if known is None or torch.float64 in known else torch.float32


MAP, TABLE, OWN = (2, 8, 5, 6), (1, 3, 2), (2, 3, 2)
SCORES, VALUES, PLACES = (2, 5, 6, 2, 2), (2, 5, 6, 2, 3), (3, 3, 2, 2)
SQUARE, LINE = (8, 8), (8,)
BLOCK = [(2, 3, 5, 6), (32, 3), (32, 3), (16, 32, 3)]

EXAMPLES = {
    "power": Example(POWER, [(5, 4), (4,), (4,)], (3,)),
    "power without shift": Example(POWER, [(5, 4), (4,), None], (2,)),
    "local_attention": Example(sasa.LOCAL_ATTENTION, [MAP, MAP, MAP, TABLE, TABLE], (2, 3, "zero")),
    "local_attention without keys": Example(
        sasa.LOCAL_ATTENTION, [MAP, None, MAP, OWN, OWN], (2, 3, "mask")
    ),
    "local_attention without positions": Example(
        sasa.LOCAL_ATTENTION, [MAP, MAP, MAP, None, None], (2, 3, "mask")
    ),
    "local_attention without either": Example(
        sasa.LOCAL_ATTENTION, [MAP, None, MAP, None, None], (2, 3, "mask")
    ),
    "aggregate": Example(qna.AGGREGATE, [SCORES, VALUES, PLACES, PLACES], (1, 1, True)),
    "aggregate by two": Example(qna.AGGREGATE, [SCORES, VALUES, PLACES, None], (2, 1, True)),
    "aggregate query by query": Example(
        qna.AGGREGATE, [SCORES, VALUES, PLACES, None], (1, 1, False)
    ),
    "attend": Example(
        qna.ATTEND, [(2, 5, 6, 4), (10, 4), (10,), PLACES, PLACES, (5, 6), (5,)], (1, 1)
    ),
    "attend by two, without biases": Example(
        qna.ATTEND, [(2, 5, 6, 4), (10, 4), None, PLACES, None, (5, 6), None], (2, 1)
    ),
    "window_attention": Example(window.WINDOW_ATTENTION, [(2, 5, 6, 12), (9, 2)], (2,)),
    "masked_window_attention": Example(
        window.MASKED_WINDOW_ATTENTION, [(2, 5, 6, 12), (9, 2), (18, 1, 4, 4)], (2,)
    ),
    "neighbourhood_attention": Example(
        neighbourhood.NEIGHBOURHOOD,
        [MAP, MAP, MAP, TABLE, TABLE, None, None],
        (2, 3, 3, 2, False, "mask"),
    ),
    "neighbourhood_attention with a table": Example(
        neighbourhood.NEIGHBOURHOOD,
        [MAP, MAP, MAP, None, None, (2, 3, 3), None],
        (2, 3, 3, 1, True, "zero"),
    ),
    "key_only": Example(
        linglo.KEY_ONLY,
        [(2, 7, 8), SQUARE, LINE, SQUARE, LINE, (2, 8), SQUARE, LINE, SQUARE, LINE],
    ),
    "feed_forward": Example(
        feed.FEED_FORWARD,
        [(2, 5, 6, 3), (16, 3), (16,), (16, 1, 3, 3), (16,), (4, 16), (4,)],
        (False,),
    ),
    "feed_forward without taps": Example(
        feed.FEED_FORWARD, [(2, 5, 6, 3), (16, 3), (16,), None, None, (4, 16), (4,)], (True,)
    ),
    "feed_branches": Example(
        branches.FEED_BRANCHES,
        [(2, 5, 6, 3), (16, 3), (16,), (2, 16, 1, 3, 3), (2, 16), (2, 16), (4, 16), (4,)],
        (1e-5, True, False),
    ),
    "feed_branches without skip": Example(
        branches.FEED_BRANCHES,
        [(2, 5, 6, 3), (16, 3), (16,), (1, 16, 1, 3, 3), (1, 16), (1, 16), (4, 16), (4,)],
        (1e-3, False, True),
    ),
    "key_only_residual": Example(
        residual.KEY_ONLY_RESIDUAL,
        [(2, 3, 4, 8), LINE, LINE, SQUARE, LINE, SQUARE, LINE, (2, 8), SQUARE, LINE, SQUARE, LINE],
        (1e-6,),
    ),
    "feed_residual": Example(
        residual.FEED_RESIDUAL,
        [(2, 5, 6, 3), (3,), (3,), (16, 3), (16,), (16, 1, 3, 3), (16,), (3, 16), (3,)],
        (False, 1e-6),
    ),
    "feed_residual without taps": Example(
        residual.FEED_RESIDUAL,
        [(2, 5, 6, 3), (3,), (3,), (16, 3), (16,), None, None, (3, 16), (3,)],
        (True, 1e-5),
    ),
    "linear": Example(linear.LINEAR, [(2, 7, 8, 3), (5, 3), (5,)]),
    "linear without bias": Example(linear.LINEAR, [(2, 7, 8, 3), (5, 3), None]),
    "attend_blocks": Example(sasa_block.ATTEND_BLOCKS, [*BLOCK, (7, 8), (7, 8)], (2, False)),
    "attend_blocks without positions": Example(
        sasa_block.ATTEND_BLOCKS, [*BLOCK, None, None], (2, True)
    ),
    "maximum_of_blocks": Example(
        sasa_block.MAXIMUM_OF_BLOCKS, [*BLOCK, (7, 8), (7, 8), (32,), (32,)], (2, True)
    ),
}
every_example = pytest.mark.parametrize("name", EXAMPLES)
# One of each operator.
one_of_each = pytest.mark.parametrize(
    "name",
    ["power", "local_attention", "aggregate", "attend", "window_attention", "key_only",
     "feed_forward", "key_only_residual", "feed_residual", "linear", "attend_blocks",
     "maximum_of_blocks"],
)  # fmt: skip


# How many of the first tensors are maps, and along which axes their size may change.
VARYING = {
    "local_attention": (3, (0, 2, 3)), "aggregate": (2, (0, 1, 2)), "attend_blocks": (1, (0, 2, 3)),
    "window_attention": (1, (0, 1, 2)), "attend": (1, (0, 1, 2)),
    "key_only": (1, (0, 1)), "feed_forward": (1, (0, 1, 2)), "linear": (1, (0, 1, 2)),
    "maximum_of_blocks": (1, (0, 2, 3)), "key_only_residual": (1, (0, 1, 2)),
    "feed_residual": (1, (0, 1, 2)),
}  # fmt: skip


def forms(example: Example) -> list[str]:
    """Those that compute this example here."""
    names = []
    for form in example.operator.ready():
        inputs = example.inputs(example.dtype(form))
        if takes(example, form, inputs):
            names.append(form)
    return names


def gradients(f: Callable[..., Tensor], tensors: list[Any], g: Tensor | None = None) -> list[Any]:
    """Output and gradients; one that no output depends on is zero."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = f(*leaves)
    torch.manual_seed(1)
    g = torch.randn(y.shape, dtype=torch.float64).to(y.dtype) if g is None else g
    present = [t for t in leaves if t is not None]
    return [y, *torch.autograd.grad(y, present, g, materialize_grads=True)]


def close(got: list[Tensor], want: list[Tensor], bound: float) -> None:
    """In units of the largest entry; of gradients, no less than a tenth of the largest of all."""
    largest = max((t.abs().max() for t in want[1:] if t.numel()), default=torch.zeros(()))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape
        if not b.numel():
            continue
        unit = torch.maximum(b.abs().max(), 0.1 * largest if i else torch.zeros(()))
        assert (a.double() - b.double()).abs().max() <= bound * unit, i


def has_backward(example: Example, form: str) -> bool:
    kernel = example.operator.kernels.get(form)
    return kernel is None or kernel.backward is not None


def test_no_operator_is_left_out():
    assert {example.operator.name for example in EXAMPLES.values()} == {"power", *OPERATORS}


# -- every form is the equation -------------------------------------------------------------------


@every_example
def test_every_form_is_the_reference(name):
    example = EXAMPLES[name]
    want = gradients(example.reference, example.inputs())
    for form in forms(example):
        dtype = example.dtype(form)
        inputs, bound = example.inputs(dtype), 1e-11 if dtype == torch.float64 else 2e-5
        with torch.no_grad():
            close([example.call(*inputs, backend=form)], want[:1], bound)
        if has_backward(example, form):
            got = gradients(lambda *t, form=form: example.call(*t, backend=form), inputs)
            assert got[0].dtype == dtype
            close(got, want, bound)


@every_example
def test_the_choice_changes_nothing(name):
    example = EXAMPLES[name]
    for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        got = gradients(example.call, example.inputs(dtype))
        close(got, gradients(example.reference, example.inputs()), bound)


@every_example
@pytest.mark.parametrize("change", ["turned", "strided", "expanded"])
def test_inputs_of_any_strides(name, change):
    """Each tensor in turn lies otherwise in memory; expanded ones repeat."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    for i, t in enumerate(inputs):
        if t is None:
            continue
        other = {
            "turned": lambda t=t: t.movedim(0, -1).contiguous().movedim(-1, 0),
            "strided": lambda t=t: t.repeat_interleave(2, -1)[..., ::2],
            "expanded": lambda t=t: t.select(0, 0).expand_as(t),
        }[change]()
        dense = [*inputs[:i], other.contiguous(), *inputs[i + 1 :]]
        others = [*inputs[:i], other, *inputs[i + 1 :]]
        want = gradients(example.reference, [None if t is None else t.double() for t in dense])
        for form in forms(example):
            if has_backward(example, form) and takes(example, form, others):
                got = gradients(lambda *t, form=form: example.call(*t, backend=form), others)
                close(got, want, 2e-5)


def takes(example: Example, form: str, inputs: list[Any]) -> bool:
    kernel = example.operator.kernels.get(form)
    return kernel is None or example.operator.fits(kernel, [*inputs, *example.options])


@one_of_each
def test_gradients_of_any_strides(name):
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    shape = example.reference(*inputs).shape
    g = torch.randn(shape)
    turned, flat = g.movedim(0, -1).contiguous().movedim(-1, 0), g[:1, ..., :1].expand(shape)
    for tensors in (turned, flat):
        for form in forms(example):
            if has_backward(example, form):
                f = lambda *t, form=form: example.call(*t, backend=form)  # noqa: E731
                want = gradients(f, inputs, tensors.contiguous())
                close(gradients(f, inputs, tensors), want, 1e-6)


# -- derivatives ----------------------------------------------------------------------------------


@every_example
def test_first_and_second_derivatives(name):
    example = EXAMPLES[name]
    leaves = example.inputs(grad=True)
    form = next(f for f in forms(example) if example.dtype(f) == torch.float64)

    def f(*tensors):
        return example.call(*tensors, backend=form)

    assert torch.autograd.gradcheck(f, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, leaves, fast_mode=True)


@one_of_each
def test_second_derivatives_of_every_form_are_those_of_the_equation(name):
    example = EXAMPLES[name]

    def twice(f, dtype):
        leaves = example.inputs(dtype, grad=True)
        once = torch.autograd.grad(f(*leaves).square().sum(), leaves, create_graph=True)
        total = sum(t.square().sum() for t in once)
        return [total, *torch.autograd.grad(total, leaves, materialize_grads=True)]

    want = twice(example.reference, torch.float64)
    for form in forms(example):
        if has_backward(example, form):
            dtype = example.dtype(form)
            got = twice(lambda *t, form=form: example.call(*t, backend=form), dtype)
            close(got, want, 1e-9 if dtype == torch.float64 else 1e-4)


@one_of_each
def test_only_what_is_wanted(name):
    """A frozen tensor gets no gradient, and the others the same as ever."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    for form in forms(example):
        if not has_backward(example, form):
            continue
        y, *want = gradients(lambda *t, form=form: example.call(*t, backend=form), inputs)
        g = torch.randn_like(y)
        _, *want = gradients(lambda *t, form=form: example.call(*t, backend=form), inputs, g)
        for i, expected in enumerate(want):
            leaves = [t.clone().requires_grad_(n == i) for n, t in enumerate(inputs)]
            example.call(*leaves, backend=form).backward(g)
            assert [t.grad is not None for t in leaves] == [n == i for n in range(len(leaves))]
            close([leaves[i].grad], [expected], 1e-5)


@one_of_each
def test_forward_may_be_used_in_any_order(name):
    """Without gradients, then with; one output used twice, and its graph gone through twice."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    with torch.no_grad():
        before = example.call(*inputs)
    with torch.inference_mode():
        assert torch.equal(example.call(*inputs), before)
    leaves = [t.requires_grad_() for t in inputs]
    y = example.call(*leaves)
    close([before], [y.detach()], 1e-6)
    first = torch.autograd.grad((y * y + 3 * y).sum(), leaves, retain_graph=True)
    again = torch.autograd.grad((y * y + 3 * y).sum(), leaves)
    assert all(map(torch.equal, first, again))
    want = torch.autograd.grad(example.reference(*leaves), leaves, 2 * y.detach() + 3)
    close([y, *first], [y, *want], 1e-4)


@one_of_each
def test_vmap_is_a_loop(name):
    """Of every form, with one tensor in two versions or all of them; and of gradients."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    twice = [torch.stack((t, t.flip(0))) for t in inputs]
    every = range(len(inputs))

    def loss(*tensors):
        return example.call(*tensors).square().sum()

    for which in ((0,), (len(inputs) - 1,), tuple(every)):
        axes = tuple(0 if i in which else None for i in every)
        others = [twice[i] if i in which else inputs[i] for i in every]
        samples = [
            [t[n] if a == 0 else t for t, a in zip(others, axes, strict=True)] for n in (0, 1)
        ]
        for form in ("auto", *example.operator.kernels):
            if form == "auto" or form in forms(example):
                call = lambda *t, form=form: example.call(*t, backend=form)  # noqa: E731
                want = torch.stack([call(*sample) for sample in samples])
                close([torch.func.vmap(call, axes)(*others)], [want], 1e-5)
        gradient = torch.func.grad(loss, argnums=tuple(every))
        together = torch.func.vmap(gradient, axes)(*others)
        for n, sample in enumerate(samples):
            want = gradients(lambda *t: example.call(*t).square().sum(), sample, torch.ones(()))
            close([t[n] for t in together], want[1:], 1e-4)


@one_of_each
def test_forward_derivatives(name):
    example = EXAMPLES[name]
    inputs = tuple(example.inputs())
    tangents = tuple(torch.randn_like(t) for t in inputs)
    got = torch.func.jvp(example.call, inputs, tangents)
    want = torch.func.jvp(example.reference, inputs, tangents)
    close(got, want, 1e-11)
    step = 1e-6
    ahead, behind = (
        example.call(*(t + sign * step * d for t, d in zip(inputs, tangents, strict=True)))
        for sign in (1, -1)
    )
    close([got[1]], [(ahead - behind) / (2 * step)], 1e-6)


# -- as torch sees it -----------------------------------------------------------------------------


@one_of_each
def test_torch_finds_no_fault(name):
    """As an exported graph calls it."""
    example = EXAMPLES[name]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    op = example.operator
    arguments = (*example.inputs(torch.float32, grad=True), *example.options, "auto", False)
    torch.library.opcheck(op._call, arguments, test_utils=checks)
    for form in forms(example)[:2]:
        if has_backward(example, form):
            arguments = backward_arguments(example, form)
            torch.library.opcheck(op._call_backward, arguments, test_utils=checks[::2])


def backward_arguments(example: Example, form: str) -> tuple[Any, ...]:
    inputs = example.inputs(torch.float32)
    op, kernel = example.operator, example.operator.kernels.get(form)
    results = op._call(*inputs, *example.options, form, kernel is not None)
    out, *residuals = results if op.keeps else (results,)
    saved = out if kernel is not None and kernel.saves else None
    expected = [t is not None for t in inputs]
    return (torch.randn_like(out), *inputs, *example.options, saved, *residuals, form, expected)


def kinds(results: Any) -> list[tuple]:
    """Shapes, dtypes, and strides, which mean nothing along an axis of one."""
    results = (results,) if isinstance(results, Tensor) else results
    pairs = (zip(t.shape, t.stride(), strict=True) for t in results)
    sizes = [[(int(n), int(s) * (n > 1)) for n, s in pair] for pair in pairs]
    return [*zip(sizes, (t.dtype for t in results), strict=True)]


@every_example
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_fake_results_are_like_real_ones(name, symbolic, untyped):
    """In shape, strides and dtype, also where sizes are symbols, of both torch operators."""
    example, op = EXAMPLES[name], EXAMPLES[name].operator
    for form in forms(example):
        inputs = example.inputs(torch.float32)
        turned = [
            t.to(memory_format=torch.channels_last) if t is not None and t.ndim == 4 else t
            for t in inputs
        ]
        for tensors in (inputs, turned):
            arguments = (*tensors, *example.options, form, form in op.kernels)
            real = kinds(op._call(*arguments))
            mode = FakeTensorMode(shape_env=ShapeEnv() if symbolic else None)
            with mode:
                fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
                assert kinds(op._call(*fakes)) == real
        if has_backward(example, form):
            arguments = backward_arguments(example, form)
            real = kinds(op._call_backward(*arguments))
            mode = FakeTensorMode(shape_env=ShapeEnv() if symbolic else None)
            with mode:
                fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
                assert kinds(op._call_backward(*fakes)) == real


@every_example
def test_meta_tensors_have_the_shape_of_the_result(name):
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    meta = [None if t is None else t.to("meta") for t in inputs]
    y, want = example.call(*meta), example.call(*inputs)
    assert (y.shape, y.dtype, y.device.type) == (want.shape, want.dtype, "meta")


@one_of_each
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_compiles_in_one_graph_forward_and_backward(name, dynamic, untyped):
    """With kernels where sizes may change, in plain PyTorch where they may not."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    torch._dynamo.reset()
    whole = torch.compile(example.call, backend="aot_eager", fullgraph=True)
    if not dynamic:
        with use_backend("plain"):
            close(gradients(whole, inputs), gradients(example.call, inputs), 1e-5)
        return
    maps, axes = VARYING.get(name, (1, (0,)))

    def f(*tensors):
        for t in tensors[:maps]:
            for axis in axes:
                torch._dynamo.mark_dynamic(t, axis)
        return whole(*tensors)

    close(gradients(f, inputs), gradients(example.call, inputs), 1e-5)


class Layer(nn.Module):
    def __init__(self, example: Example):
        super().__init__()
        self.example = example

    def forward(self, *tensors):
        return self.example.call(*tensors)


@one_of_each
def test_traces(name, untyped):
    example = EXAMPLES[name]
    inputs = tuple(example.inputs(torch.float32))
    traced = torch.jit.trace(Layer(example), inputs, check_trace=True)
    other = tuple(t.flip(0) for t in inputs)
    close([traced(*other)], [example.call(*other)], 1e-5)
    close(gradients(traced, list(other)), gradients(example.call, list(other)), 1e-4)


@one_of_each
def test_exported_programs_choose_where_they_run(name, untyped):
    """As one operator; with `use_backend("plain")`, in torch's own, for where saccade is not."""
    example = EXAMPLES[name]
    inputs = tuple(example.inputs(torch.float32))

    def called(program):
        return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}

    program = torch.export.export(Layer(example), inputs)
    assert called(program) >= {f"saccade.{example.operator.name}.default"}
    with use_backend("plain"):
        portable = torch.export.export(Layer(example), inputs)
    assert not any("saccade" in target for target in called(portable))
    for graph in (program, portable):
        close([graph.module()(*inputs)], [example.call(*inputs)], 1e-5)


# -- FLOPs ----------------------------------------------------------------------------------------


def counted(f: Callable[..., Tensor], tensors: list[Any]) -> list[int]:
    """Forward and backward."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    with FlopCounterMode(display=False) as forward:
        y = f(*leaves)
    with FlopCounterMode(display=False) as backward:
        y.backward(torch.ones_like(y))
    return [forward.get_total_flops(), backward.get_total_flops()]


def flops_of_all() -> dict[str, list[int]]:
    return {
        name: counted(example.call, example.inputs(torch.float32))
        for name, example in EXAMPLES.items()
    }


@every_example
def test_flops_are_those_of_the_equation(name, untyped):
    """One formula, whichever form computes, on whatever device; the backward has twice the work."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    shapes = [None if t is None else t.shape for t in inputs]
    one = example.operator.flops(*shapes, *example.options)
    assert one > 0
    for form in forms(example):
        if has_backward(example, form):
            f = lambda *t, form=form: example.call(*t, backend=form)  # noqa: E731
            assert counted(f, inputs) == [one, 2 * one], form
    meta = [None if t is None else t.to("meta") for t in inputs]
    assert counted(example.call, meta) == [one, 2 * one]
    program = torch.export.export(Layer(example), tuple(inputs)).module()
    assert counted(program, inputs) == [one, 2 * one]


def test_flops_are_the_same_without_kernels():
    code = "import json, tests.ops.test_operator as t; print(json.dumps(t.flops_of_all()))"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"SACCADE_NATIVE": "0"}, cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(run.stdout) == flops_of_all()


@one_of_each
def test_counting_changes_no_result(name):
    example = EXAMPLES[name]
    inputs = example.inputs()
    want = gradients(example.call, inputs)
    with FlopCounterMode(display=False):
        close(gradients(example.call, inputs), want, 1e-11)


# -- the choice -----------------------------------------------------------------------------------


@one_of_each
def test_an_unknown_backend_is_refused(name):
    example = EXAMPLES[name]
    says = f"{example.operator.name}: backend must be 'auto', 'plain' or one of .*'abacus'"
    with pytest.raises(ValueError, match=says):
        example.call(*example.inputs(), backend="abacus")


@one_of_each
def test_a_backend_that_does_not_take_a_call_is_refused(name):
    """In one sentence that says what it does take, and what it got."""
    example = EXAMPLES[name]
    for form, kernel in example.operator.kernels.items():
        if kernel.dtypes is not None:
            inputs = example.inputs(torch.float16)
            with pytest.raises(ValueError, match=f"backend '{form}' takes .* got .*float16"):
                example.call(*inputs, backend=form)
            away = replace(kernel, ready=lambda: False)
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(example.operator.kernels, form, away)
                with pytest.raises(ValueError, match=f"backend '{form}' takes"):
                    example.call(*example.inputs(torch.float32), backend=form)
                example.call(*example.inputs(torch.float32))


@one_of_each
def test_a_block_of_code_may_keep_to_plain_pytorch(name):
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)

    def operators(f):
        return {str(n.target) for n in make_fx(f)(*inputs).graph.nodes if n.op == "call_function"}

    def ours(f):
        return {name for name in operators(f) if "saccade" in name}

    kernels = [f for f in example.operator.kernels if f in forms(example)]
    with torch.no_grad():
        with use_backend("plain"):
            assert not ours(example.call)
            for form in kernels:
                assert ours(lambda *t, form=form: example.call(*t, backend=form))
            with use_backend("auto"):
                inside = ours(example.call)
        chosen = example.operator.choose([*inputs, *example.options])
        assert bool(inside) == bool(ours(example.call)) == (chosen in kernels)


def test_a_block_of_code_may_keep_to_a_backend():
    maps = EXAMPLES["local_attention"]
    with use_backend("tiled"):
        inputs = [*maps.inputs(), *maps.options]
        assert maps.operator.choose(inputs) == "tiled"
        assert maps.operator.choose(inputs, "unfolded") == "unfolded"
        linear = EXAMPLES["linear"]
        linear.call(*linear.inputs())  # which has no such form, and chooses as ever
    with pytest.raises(ValueError, match="has the backend 'abacus'"), use_backend("abacus"):
        pass
    with pytest.raises(KeyError), use_backend("plain"):
        raise KeyError
    assert maps.operator.choose(inputs) == maps.operator.ready()[0]


# -- right or refused -----------------------------------------------------------------------------


def right_or_refused(example: Example, inputs: list[Any], bound: float) -> str:
    """No result that is neither."""
    try:
        got = gradients(example.call, inputs)
    except (ValueError, RuntimeError, TypeError) as error:
        return str(error)
    want = gradients(example.reference, [None if t is None else t.double() for t in inputs])
    close(got, want, bound)
    return ""


@every_example
@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16], ids=str)
def test_one_tensor_of_another_dtype(name, other):
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    inputs = [None if t is None else t.bfloat16().float() for t in inputs]
    for i, t in enumerate(inputs):
        if t is not None:
            changed = [*inputs[:i], t.to(other), *inputs[i + 1 :]]
            right_or_refused(example, changed, 2e-2 if other == torch.bfloat16 else 1e-5)


@every_example
def test_one_tensor_elsewhere_is_refused(name):
    """Not computed with whatever lies in memory."""
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    for i, t in enumerate(inputs):
        if t is not None:
            with pytest.raises((ValueError, RuntimeError)):
                example.call(*inputs[:i], t.to("meta"), *inputs[i + 1 :])


class Tagged(torch.Tensor):
    """A subclass that notes what is done with it."""

    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


@one_of_each
def test_subclasses_see_plain_operators(name, untyped):
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)
    want = example.call(*inputs)
    for i, t in enumerate(inputs):
        Tagged.calls.clear()
        y = example.call(*inputs[:i], t.as_subclass(Tagged), *inputs[i + 1 :])
        assert Tagged.calls  # nobody computed past it
        close([y.as_subclass(torch.Tensor)], [want], 1e-5)


@one_of_each
def test_empty_batches(name):
    example = EXAMPLES[name]
    maps, _ = VARYING.get(name, (1, (0,)))
    inputs = example.inputs(torch.float32)
    inputs = [t[:0] if i < maps else t for i, t in enumerate(inputs)]
    y, *got = gradients(example.call, inputs)
    assert y.shape == (0, *example.call(*example.inputs(torch.float32)).shape[1:])
    for g, t in zip(got, inputs, strict=True):
        assert torch.equal(g, torch.zeros_like(t))


@one_of_each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(name, dtype):
    example = EXAMPLES[name]
    inputs = example.inputs(torch.float32)

    def f(*tensors):
        with torch.autocast("cpu", dtype):
            return example.call(*tensors)

    got, want = gradients(f, inputs), gradients(example.reference, example.inputs())
    assert all(t.dtype == torch.float32 for t in got[1:])
    g = torch.randn(got[0].shape)
    got = gradients(f, inputs, g.to(got[0].dtype))
    want = gradients(example.reference, example.inputs(), g.double())
    close(got, want, 16 * torch.finfo(dtype).eps)
    for form in example.operator.plain:
        with torch.autocast("cpu", dtype):
            assert example.call(*inputs, backend=form).dtype == got[0].dtype


@one_of_each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision(name, dtype):
    example = EXAMPLES[name]
    inputs = example.inputs(dtype)
    got = gradients(example.call, inputs)
    want = gradients(example.reference, [t.double() for t in inputs], None)
    assert all(t.dtype == dtype for t in got)
    close(got[:1], want[:1], 16 * torch.finfo(dtype).eps)


@every_example
def test_what_has_no_meaning_is_refused(name):
    """The first tensor with one channel, row or head too many."""
    example = EXAMPLES[name]
    first, *rest = example.inputs(torch.float32)
    wrong = torch.cat((first, first[..., :1]), -1)
    if name.startswith(("attend_blocks", "maximum", "local", "neighbourhood")):
        wrong = torch.cat((first, first[:, :1]), 1)
    with pytest.raises((ValueError, RuntimeError)):
        example.call(wrong, *rest)
    with pytest.raises(ValueError, match=f"{example.operator.name.split('_')[0]}|attend|aggregate"):
        example.operator._call(wrong, *rest, *example.options, "auto", False)


@one_of_each
def test_autocast_leaves_double_precision_alone(name):
    """As it does for torch's own operators."""
    example = EXAMPLES[name]
    inputs = example.inputs()
    with torch.autocast("cpu", torch.bfloat16):
        y = example.call(*inputs)
    assert y.dtype == torch.float64
    close([y], [example.call(*inputs)], 1e-11)


# -- what must not reach a pointer ---------------------------------------------------------------


def test_tables_of_two_shapes_are_refused(untyped):
    q, row, col = torch.randn(1, 64, 9, 9), torch.randn(8, 7, 4), torch.randn(1, 7, 4)
    for tables in ((row, col), (col, row)):
        with pytest.raises(ValueError, match="row is r k half"):
            sasa.local_attention(q, q, q, *tables, 8, 7)


def test_values_of_another_rank_are_refused(untyped):
    s, rpe = torch.randn(1, 8, 8, 2, 2), torch.zeros(3, 3, 2, 2)
    for v in (torch.randn(1, 8, 8, 2), torch.randn(1, 8, 8, 2, 16, 4)):
        with pytest.raises(ValueError, match="v is B H W h d"):
            qna.aggregate(s, v, rpe, None, 1, 1)


def test_gradients_that_are_not_like_the_output_are_refused():
    x, w = torch.randn(128, 16), torch.randn(8, 16)
    for grad in (torch.ones(128, 8).double(), torch.ones(2, 8)):
        with pytest.raises(ValueError, match="like the output"):
            torch.ops.saccade.linear_backward(grad, x, w, None, None, "native", [True, True, False])


@pytest.mark.parametrize("backend", ["native", "tiled"])
def test_backward_inside_autocast(backend):
    q, k, v = (torch.randn(1, 32, 12, 12, requires_grad=True) for _ in range(3))
    row, col = torch.randn(2, 1, 7, 4)

    def loss():
        return sasa.local_attention(q, k, v, row, col, 4, 7, backend=backend).square().sum()

    expected = torch.autograd.grad(loss(), (q, k, v))
    y = loss()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torch.autograd.grad(y, (q, k, v)), expected)
