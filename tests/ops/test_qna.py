"""QnA's forms against the equation in plain loops, and against each other."""

import math
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from saccade.bench import peak_memory
from saccade.ops import operator, qna
from saccade.ops.operator import use_backend

FORMS = ("auto", "walked", "unrolled", "convolved")
every_form = pytest.mark.parametrize("form", FORMS)
walked = partial(qna.aggregate, backend="walked")


def by_loops(s, v, rpe, ws, stride, padding, fold=True):
    """The equation, a window, a query and a head at a time, in float64."""
    s, v, rpe = s.double(), v.double(), rpe.double()
    ws = torch.ones_like(rpe) if ws is None else ws.double()
    B, H, W, L, h = s.shape
    k = rpe.shape[0]
    Ho, Wo = ((n + 2 * padding - k) // stride + 1 for n in (H, W))
    z = torch.zeros(B, Ho, Wo, L, h, v.shape[-1], dtype=torch.float64)
    for b, i, j, q, n in product(*map(range, (B, Ho, Wo, L, h))):
        inside = []
        for y, x in product(range(k), repeat=2):
            row, column = i * stride + y - padding, j * stride + x - padding
            if 0 <= row < H and 0 <= column < W:
                inside.append((y, x, row, column))
        logits = [float(s[b, row, column, q, n] + rpe[y, x, q, n]) for y, x, row, column in inside]
        e = [math.exp(logit - max(logits)) for logit in logits]
        for (y, x, row, column), weight in zip(inside, e, strict=True):
            z[b, i, j, q, n] += weight / sum(e) * ws[y, x, q, n] * v[b, row, column, n]
    return z.sum(3) if fold else z


def case(B=1, H=5, W=6, L=2, h=2, d=3, k=3, dtype=torch.float64, grad=False):
    shapes = (B, H, W, L, h), (B, H, W, h, d), (k, k, L, h), (k, k, L, h)
    return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes]


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


GEOMETRIES = [  # H, W, k, stride, padding, L
    (5, 6, 3, 1, 1, 2),
    (5, 6, 3, 2, 1, 1),
    (7, 4, 5, 2, 2, 3),
    (4, 5, 1, 1, 0, 2),
    (6, 7, 3, 3, 1, 2),
    (5, 5, 5, 1, 0, 2),  # one window, the size of the map
    (3, 2, 13, 1, 6, 1),  # windows larger than the map
    (6, 5, 4, 2, 1, 1),  # an even window, off centre
    (4, 4, 3, 1, 2, 2),  # more border than centred windows have
    (1, 1, 3, 2, 1, 4),
]


@every_form
@pytest.mark.parametrize(("H", "W", "k", "stride", "padding", "L"), GEOMETRIES)
def test_every_form_is_the_equation(form, H, W, k, stride, padding, L):
    s, v, rpe, ws = case(H=H, W=W, k=k, L=L)
    expected = by_loops(s, v, rpe, ws, stride, padding)
    z = qna.aggregate(s, v, rpe, ws, stride, padding, backend=form)
    assert z.shape == expected.shape
    assert relative(z, expected) < 1e-14
    apart = qna.aggregate(s, v, rpe, None, stride, padding, fold=False, backend=form)
    assert relative(apart, by_loops(s, v, rpe, None, stride, padding, fold=False)) < 1e-14


@settings(max_examples=25, deadline=None)
@given(
    H=st.integers(1, 6), W=st.integers(1, 6), k=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 3), L=st.integers(1, 3), h=st.integers(1, 3), d=st.integers(1, 4),
    B=st.integers(1, 2),
)  # fmt: skip
def test_the_walk_is_the_equation_for_any_shape(H, W, k, stride, L, h, d, B):
    torch.manual_seed(0)
    s, v, rpe, ws = case(B, H, W, L, h, d, k)
    z = qna.aggregate(s, v, rpe, ws, stride, k // 2)
    expected = by_loops(s, v, rpe, ws, stride, k // 2)
    assert relative(z, expected) < 1e-14
    assert relative(walked(s, v, rpe, ws, stride, k // 2), expected) < 1e-14


@pytest.mark.parametrize("form", [qna.aggregate, walked])
@pytest.mark.parametrize(("H", "W", "k", "stride", "padding", "L"), GEOMETRIES)
@pytest.mark.parametrize("fold", [True, False])
def test_gradients_are_those_of_the_plain_form(H, W, k, stride, padding, L, fold, form):
    inputs = case(H=H, W=W, k=k, L=L, grad=True)
    y, expected = (f(*inputs, stride, padding, fold) for f in (form, qna.unrolled))
    g = torch.randn_like(y)
    pairs = zip(
        torch.autograd.grad(y, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True
    )
    for ours, theirs in pairs:
        assert (ours - theirs).abs().max() < 1e-14 * g.abs().max() * k * k * H * W


@pytest.mark.parametrize("form", [qna.aggregate, walked])
@pytest.mark.parametrize("fold", [True, False])
def test_first_and_second_derivatives(fold, form):
    inputs = case(H=2, W=3, L=2, h=1, d=1, grad=True)

    def f(*inputs):
        return form(*inputs, 2, 1, fold)

    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs, fast_mode=True)


# -- precision -------------------------------------------------------------------------------------


def far_apart(kind):
    """Maps of scores with which a shared shift cannot cope."""
    s, v, rpe, ws = case(B=1, H=6, W=8, L=2, h=2, d=4, dtype=torch.float32)
    if kind == "halves":  # windows of either half, and across, 2e4 apart
        s[:, :, :4] += 1e4
        s[:, :, 4:] -= 1e4
    elif kind == "noise":
        s = (torch.rand_like(s) * 2 - 1) * 1e4
    elif kind == "bias":  # the table reaches as far as the scores
        s, rpe = s * 5e3, rpe * 5e3
    return s, v, rpe, ws


@pytest.mark.parametrize("kind", ["halves", "noise", "bias"])
@pytest.mark.parametrize("form", [qna.aggregate, walked, qna.unrolled])
def test_scores_of_ten_thousand_are_right_in_fp32(kind, form):
    s, v, rpe, ws = far_apart(kind)
    expected = by_loops(s, v, rpe, ws, 1, 1)
    assert relative(form(s, v, rpe, ws, 1, 1).double(), expected) < 2e-6


@pytest.mark.parametrize("form", [qna.aggregate, walked])
@pytest.mark.parametrize("kind", ["halves", "noise"])
def test_their_gradients_are_right_too(kind, form):
    narrow = [t.requires_grad_() for t in far_apart(kind)]
    wide = [t.detach().double().requires_grad_() for t in narrow]
    g = torch.randn(1, 6, 8, 2, 4)
    ours = torch.autograd.grad(form(*narrow, 1, 1), narrow, g)
    exact = torch.autograd.grad(qna.unrolled(*wide, 1, 1), wide, g.double())
    for a, b in zip(ours, exact, strict=True):
        assert (a.double() - b).abs().max() <= 5e-6 * max(b.abs().max(), 1)


def test_why_the_convolved_form_is_not_the_default():
    s, v, rpe, ws = far_apart("halves")
    assert not qna.convolved(s, v, rpe, ws, 1, 1).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [1.0, 12.0, 1e4])
def test_low_precision_in_full_precision_sums(dtype, spread):
    s, v, rpe, ws = (t.to(dtype) for t in case(B=1, H=5, W=4, L=2, h=2, d=4, k=7))
    s = (s * spread).clamp(-3e4, 3e4)
    z = qna.aggregate(s, v, rpe, ws, 1, 3)
    assert z.dtype == dtype
    exact = by_loops(s, v, rpe, ws, 1, 3)
    assert (z.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        again = qna.aggregate(s, v, rpe, ws, 1, 3)
    assert torch.equal(again, qna.aggregate(s.bfloat16(), v.bfloat16(), rpe, ws, 1, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_gradients(dtype):
    narrow = [t.to(dtype).requires_grad_() for t in case(k=5, L=3)]
    wide = [t.detach().double().requires_grad_() for t in narrow]
    z = qna.aggregate(*narrow, 1, 2)
    g = torch.randn_like(z)
    ours = torch.autograd.grad(z, narrow, g)
    exact = torch.autograd.grad(qna.aggregate(*wide, 1, 2), wide, g.double())
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() <= torch.finfo(dtype).eps * b.abs().max()


def test_not_a_number_stays_visible():
    s, v, rpe, ws = case()
    s[0, 2, 2] = torch.nan
    z = qna.aggregate(s, v, rpe, ws, 1, 1)
    assert z[0, 1:4, 1:4].isnan().all()
    assert z[0, 0].isfinite().all()


# -- memory ----------------------------------------------------------------------------------------


def held(form, k):
    """Bytes kept for backward, and at the peak of forward, and of forward and backward."""
    inputs = case(1, 24, 24, 2, 4, 8, k, torch.float32, grad=True)
    sizes = []

    def step():
        form(*inputs, 1, k // 2).sum().backward()
        for t in inputs:
            t.grad = None

    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t), t)[1], lambda t: t):
        form(*inputs, 1, k // 2)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in sizes}
    step()
    with torch.no_grad():
        forward = peak_memory(lambda: form(*inputs, 1, k // 2))
    return sum(storages.values()), forward, peak_memory(step)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_window():
    """Keys, windows, attention maps: nothing of size k^2 is ever held."""
    grown = held(qna.unrolled, 9)  # the same measurement sees a form that does hold them
    assert all(b > 4 * a for a, b in zip(held(qna.unrolled, 3)[1:], grown[1:], strict=True))
    tables = 9 * 9 * 2 * 4 * 4  # what is asked for per place of a window grows, of course
    for form in (qna.aggregate, walked):
        small, large = held(form, 3), held(form, 9)
        for a, b in zip(small, large, strict=True):
            assert b <= 1.02 * a + 8 * tables
        assert all(a < b / 4 for a, b in zip(large[1:], grown[1:], strict=True))


@pytest.mark.slow
def test_memory_does_not_grow_with_queries_as_values_do():
    """Two queries hold one V, not two: the authors' form holds a copy for each."""

    def peak(form, L):
        inputs = case(2, 40, 40, L, 2, 32, 3, torch.float32)
        return peak_memory(lambda: form(*inputs, 1, 1))

    for form in (qna.aggregate, walked):
        assert peak(form, 4) < 1.5 * peak(form, 1)
    assert peak(qna.convolved, 4) > 3 * peak(qna.convolved, 1)


# -- an operator like any other --------------------------------------------------------------------


@pytest.mark.parametrize("which", range(4))
def test_function_transforms(which):
    """torch.func: per-sample gradients with any one of the inputs in many versions."""
    inputs = case(H=3, W=3, L=2, h=1, d=2)
    inputs[which] = torch.stack([inputs[which], 2 * inputs[which]])
    axes = tuple(0 if i == which else None for i in range(4))

    def loss(*inputs):
        return qna.aggregate(*inputs, 1, 1).square().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    together = torch.vmap(gradient, axes)(*inputs)
    for i in range(2):
        alone = gradient(*(t[i] if n == which else t for n, t in enumerate(inputs)))
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[i], b)


def test_shapes_on_the_meta_device():
    with torch.device("meta"):
        inputs = case(2, 7, 9, 3, 4, 8, 5)
    assert qna.aggregate(*inputs, 2, 2).shape == (2, 4, 5, 4, 8)
    assert qna.aggregate(*inputs, 1, 2, fold=False).shape == (2, 7, 9, 3, 4, 8)


@pytest.mark.parametrize("stride", [1, 2])
def test_export_holds_for_every_size(stride, untyped):
    class Layer(torch.nn.Module):
        def forward(self, s, v, rpe, ws):
            return qna.aggregate(s, v, rpe, ws, stride, 1)

    free = dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)
    inputs = tuple(case(2, 8, 9))
    program = torch.export.export(Layer(), inputs, dynamic_shapes=(free, free, None, None))
    with use_backend("plain"):
        portable = torch.export.export(Layer(), inputs, dynamic_shapes=(free, free, None, None))
    assert not any("saccade" in str(node.target) for node in portable.graph.nodes)
    assert any("saccade.aggregate" in str(node.target) for node in program.graph.nodes)
    for size in [(1, 4, 5), (3, 12, 7)]:
        s, v, _, _ = case(*size)
        expected = qna.aggregate(s, v, *inputs[2:], stride, 1)
        torch.testing.assert_close(program.module()(s, v, *inputs[2:]), expected)
        torch.testing.assert_close(portable.module()(s, v, *inputs[2:]), expected)


def test_the_counter_sees_it():
    with torch.device("meta"):
        inputs = case(2, 8, 8, 2, 4, 16, 3)
    with FlopCounterMode(display=False) as counter:
        qna.aggregate(*inputs, 2, 1)
    assert counter.get_total_flops() == 2 * (2 * 4 * 4) * 9 * 4 * 2 * (16 + 1)
    with FlopCounterMode(display=False) as counter:
        qna.aggregate(*inputs, 2, 1, fold=False)
    assert counter.get_total_flops() == 2 * (2 * 4 * 4) * 9 * 4 * 2 * (16 + 1)


def test_weights_are_a_softmax_inside_the_map():
    s, _, rpe, _ = case(H=4, W=5, k=5)
    p = qna.weights(s, rpe, 1, 2)
    assert p.shape == (1, 4, 5, 2, 2, 5, 5)
    torch.testing.assert_close(p.sum((-2, -1)), torch.ones(1, 4, 5, 2, 2, dtype=p.dtype))
    assert (p[0, 0, 0, :, :, :2] == 0).all()  # above the map
    assert (p[0, 0, 0, :, :, 2:, 2:] > 0).all()


@pytest.mark.parametrize(
    ("change", "form"),
    [
        ({}, "triton"), ({"d": 256}, "walked"), ({"dtype": torch.bfloat16}, "triton"),
        ({"triton": False}, "walked"), ({"dtype": torch.float64}, "triton"),
        ({"fold": False}, "triton"), ({"device": "cpu"}, "native"),
        ({"device": "cpu", "fold": False}, "walked"),
        ({"device": "cpu", "native": False}, "walked"), ({"device": "meta"}, "walked"),
        ({"device": "cpu", "dtype": torch.float16}, "walked"),
    ],
)  # fmt: skip
def test_each_device_has_its_form(monkeypatch, change, form):
    """Fake tensors: the choice looks at device, dtype and shape alone, and needs no GPU."""
    pytest.importorskip("triton")
    call = {"device": "cuda", "dtype": torch.float32, "d": 8, "fold": True}
    call |= {"triton": True, "native": True} | change
    for name in ("triton", "native"):
        kernel = replace(qna.AGGREGATE.kernels[name], ready=partial(call.get, name))
        monkeypatch.setitem(qna.AGGREGATE.kernels, name, kernel)
    with FakeTensorMode(), torch.device(call["device"]):
        s, v = (torch.empty(1, 9, 9, 2, n, dtype=call["dtype"]) for n in (2, call["d"]))
        rpe = torch.empty(3, 3, 2, 2)
    monkeypatch.setattr(operator, "Tensor", FakeTensor)
    assert qna.AGGREGATE.choose((s, v, rpe, rpe, 1, 1, call["fold"])) == form
