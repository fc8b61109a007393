import pytest
import torch

from saccade.ops import native
from saccade.ops.native import linear
from saccade.ops.native.linear import add_gradients, add_gradients_each, times, times_each
from tests.ops.native.oracle import relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())

SHAPES = [(256, 64, 80), (257, 1, 1), (300, 7, 25), (511, 24, 33), (400, 300, 17), (1000, 128, 144)]


@pytest.fixture(params=["kernel", "torch"])
def way(request, monkeypatch):
    monkeypatch.setattr(linear, "ours", lambda: request.param == "kernel")
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
    monkeypatch.setattr(linear, "ours", lambda: True)
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
    monkeypatch.setattr(linear, "ours", lambda: True)
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
    monkeypatch.setattr(linear, "ours", lambda: True)
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
    monkeypatch.setattr(linear, "ours", lambda: False)
    x, y = torch.ones(4096, 16), torch.empty(4096, 4)
    times(x, torch.ones(4, 16), None, y)
    assert y.max() == y.min() == 16
    assert not called
    monkeypatch.undo()
    native.use("generic")
    try:
        assert not linear.ours()
    finally:
        native.use("")
