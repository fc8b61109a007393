import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import linear as ops
from saccade.ops import native
from saccade.ops.native import linear
from saccade.ops.native.linear import add_gradients, add_gradients_each, times, times_each
from tests.ops.native.oracle import gradients, relative

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=native.where()),
    pytest.mark.usefixtures("everywhere"),
]

SHAPES = [(256, 64, 80), (257, 1, 1), (300, 7, 25), (511, 24, 33), (400, 300, 17), (1000, 128, 144)]


@pytest.fixture(params=["kernel", "torch"])
def way(request, monkeypatch):
    monkeypatch.setattr(linear, "pays", lambda: request.param == "kernel")
    return request.param


@pytest.fixture(params=native.INSTRUCTION_SETS)
def instruction_set(request):
    try:
        native.use(request.param)
    except ValueError:
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    native.use("")


@pytest.mark.parametrize(("M", "K", "N"), SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_equals_the_equation(way, M, K, N, bias, turned):
    torch.manual_seed(0)
    x, b = torch.randn(M, K), torch.randn(N) if bias else None
    w = torch.randn(K, N).mT if turned else torch.randn(N, K)
    y = torch.full((M, N), torch.nan)  # whatever was there is gone
    times(x, w, b, y)
    want = x.double() @ w.double().mT + (0 if b is None else b.double())
    assert relative(y, want) <= 1e-5
    dw, db = torch.ones(N, K), torch.ones(N) if bias else None
    add_gradients(y, x, dw, db)
    assert relative(dw, y.double().mT @ x.double() + 1) <= 1e-5
    if db is not None:
        assert relative(db, y.double().sum(0) + 1) <= 1e-5


def test_every_instruction_set(instruction_set, monkeypatch):
    monkeypatch.setattr(linear, "pays", lambda: True)
    torch.manual_seed(0)
    x, w, b, g = torch.randn(333, 50), torch.randn(37, 50), torch.randn(37), torch.randn(333, 37)
    y, dw = torch.empty(333, 37), torch.zeros(37, 50)
    times(x, w, b, y)
    add_gradients(g, x, dw, None)
    assert relative(y, x.double() @ w.double().mT + b.double()) <= 1e-5
    assert relative(dw, g.double().mT @ x.double()) <= 1e-5


@pytest.mark.parametrize("M", [300, 40])
@pytest.mark.parametrize("turned", [True, False])
def test_a_matrix_for_every_image(way, M, turned):
    torch.manual_seed(0)
    B, K, N = 3, 20, 30
    x, w, b, g = (torch.randn(s) for s in ((B, M, K), (B, N, K), (B, N), (B, M, N)))
    if turned:
        w = w.mT.contiguous().mT
    y = torch.full((B, M, N), torch.nan)
    for bias in (b, None):
        times_each(x, w, bias, y)
        want = x.double() @ w.double().mT + (0 if bias is None else bias.double()[:, None])
        assert relative(y, want) <= 1e-5
    dw, db = torch.ones(B, N, K), torch.ones(B, N)
    add_gradients_each(g, x, dw, db)
    assert relative(dw, g.double().mT @ x.double() + 1) <= 1e-5
    assert relative(db, g.double().sum(1) + 1) <= 1e-5


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(monkeypatch, threads):
    monkeypatch.setattr(linear, "pays", lambda: True)
    torch.manual_seed(0)
    x, w, b, g = torch.randn(777, 48), torch.randn(61, 48), torch.randn(61), torch.randn(777, 61)

    def both():
        y, dw, db = torch.empty(777, 61), torch.zeros(61, 48), torch.zeros(61)
        times(x, w, b, y)
        add_gradients(g, x, dw, db)
        return y, dw, db

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = both()
        torch.set_num_threads(threads)
        assert all(map(torch.equal, alone, both()))
    finally:
        torch.set_num_threads(before)


def test_nan_stays_in_its_pixel(monkeypatch):
    monkeypatch.setattr(linear, "pays", lambda: True)
    x = torch.ones(256, 16)
    x[5, 3] = torch.nan
    y = torch.empty(256, 9)
    times(x, torch.ones(9, 16), None, y)
    assert y[5].isnan().all()
    assert y.isnan().sum() == 9


def test_few_pixels_and_wide_arithmetic_are_torchs(monkeypatch):
    """No matrix is laid out for a handful of pixels, nor where torch has wider arithmetic."""
    called = []
    monkeypatch.setattr(linear, "run", lambda name, call: called.append(name))
    x, y = torch.ones(8, 16), torch.empty(8, 4)
    times(x, torch.ones(4, 16), None, y)
    assert torch.equal(y, torch.full((8, 4), 16.0))
    monkeypatch.setattr(linear, "pays", lambda: False)
    x, y = torch.ones(4096, 16), torch.empty(4096, 4)
    times(x, torch.ones(4, 16), None, y)
    assert y.max() == y.min() == 16
    assert not called
    monkeypatch.undo()
    native.use("generic")
    try:
        assert not linear.pays()
    finally:
        native.use("")


# -- the same as an operator ----------------------------------------------------------------------


def fused(x, weight, bias=None):
    return ops.linear(x, weight, bias, backend="native")


def layer(C=20, D=33, bias=True):
    torch.manual_seed(0)
    x = torch.randn(3, 10, 11, C)
    return (x, torch.randn(D, C), torch.randn(D) if bias else None), torch.randn(3, 10, 11, D)


@pytest.mark.parametrize("bias", [True, False])
def test_the_operator_equals_the_equation(way, bias):
    tensors, g = layer(bias=bias)
    y, dy = gradients(fused, tensors, g)
    want, dwant = gradients(F.linear, [None if t is None else t.double() for t in tensors], g)
    assert relative(y, want) <= 1e-5
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected) <= 1e-5


@pytest.mark.parametrize("bias", [True, False])
def test_opcheck(bias):
    tensors, g = layer(bias=bias)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.saccade.linear.default, (*leaves, "native", True))
    tensors = [None if t is None else t.detach() for t in tensors]
    for expected in ([True, True, bias], [True, False, False], [False, True, False]):
        arguments = (g, *tensors, None, "native", expected)
        torch.library.opcheck(torch.ops.saccade.linear_backward.default, arguments)


def test_only_what_is_asked_for_is_computed():
    (x, w, b), g = layer()
    for inputs in ((x,), (w,), (b,), (x, b)):
        leaves = [t.clone().requires_grad_(any(t is a for a in inputs)) for t in (x, w, b)]
        fused(*leaves).backward(g)
        want = [t.detach().clone().requires_grad_(t.requires_grad) for t in leaves]
        F.linear(*want).backward(g)
        for got, expected in zip(leaves, want, strict=True):
            assert (got.grad is None) == (expected.grad is None)
            if got.grad is not None:
                torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-4)


def test_second_derivatives():
    tensors, g = layer(4, 3)

    def twice(f, leaves):
        once = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        total = sum(t.square().sum() for t in once)
        return torch.autograd.grad(total, leaves, materialize_grads=True)

    leaves = [t.requires_grad_() for t in tensors]
    pairs = zip(twice(fused, leaves), twice(F.linear, leaves), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_flops_are_torchs_own():
    tensors, g = layer()

    def counted(f):
        leaves = [t.detach().requires_grad_() for t in tensors]
        with FlopCounterMode(display=False) as counter:
            f(*leaves).backward(g)
        return counter.get_total_flops()

    assert counted(fused) == counted(F.linear)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="linear: x is"):
        ops.LINEAR(torch.ones(4, 3), torch.ones(5, 4), None)


def test_a_bias_of_any_stride():
    (x, w, b), _ = layer()
    spread = b.repeat_interleave(2)[::2]
    assert torch.equal(fused(x, w, spread), fused(x, w, b))
    with pytest.raises(ValueError, match="bias is D"):
        ops.LINEAR(x, w, b[1:])
