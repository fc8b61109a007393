"""The feed-forward as one operator: the plain form is its oracle, in double precision."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.bench import peak_memory
from saccade.ops import feed, native
from saccade.ops.feed import FeedForwardWeights
from tests.ops.native.oracle import gradients, relative
from tests.ops.test_feed import letters

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=native.where()),
    pytest.mark.usefixtures("everywhere"),
]

SHAPES = [  # B H W C J D
    (2, 9, 11, 24, 96, 24), (1, 1, 1, 3, 16, 5), (3, 7, 7, 16, 48, 16), (2, 5, 3, 8, 32, 8),
    (1, 2, 40, 17, 144, 33), (1, 40, 130, 8, 64, 8), (1, 60, 56, 32, 304, 32), (2, 1, 9, 4, 16, 4),
    (1, 3, 700, 4, 32, 4), (5, 14, 14, 40, 160, 40),
]  # fmt: skip


def example(B=2, H=9, W=11, C=24, J=96, D=24, taps=True):
    torch.manual_seed(0)
    return (torch.randn(B, H, W, C), *letters(C, J, D, taps)), torch.randn(B, H, W, D)


def exact(tensors):
    return [None if t is None else t.double() for t in tensors]


def by(backend, tanh=False):
    return lambda x, *w: feed.feed_forward(x, FeedForwardWeights(*w), tanh, backend)


fused, plain = by("native"), by("composed")


def compare(tensors, g, tanh):
    y, dy = gradients(by("native", tanh), tensors, g)
    want, dwant = gradients(by("composed", tanh), exact(tensors), g.double())
    assert relative(y, want) <= 2e-6
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected) <= 1e-5
    with torch.no_grad():  # nothing is kept
        assert torch.equal(by("native", tanh)(*tensors), y)


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("taps", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equation(shape, taps, tanh):
    compare(*example(*shape, taps), tanh)


@pytest.mark.parametrize("name", native.INSTRUCTION_SETS)
@pytest.mark.parametrize("taps", [False, True])
def test_every_instruction_set(name, taps):
    try:
        native.use(name)
    except ValueError:
        pytest.skip(f"this machine has no {name}")
    try:
        compare(*example(2, 13, 30, 20, 176, 20, taps), False)
    finally:
        native.use("")


def test_a_map_in_several_turns_and_bands():
    """Larger than what a turn of the backward takes, so that parts of an image share rows."""
    compare(*example(1, 150, 60, 4, 144, 4), False)


@pytest.mark.parametrize("taps", [False, True])
def test_threads_and_runs_agree_bit_for_bit(taps):
    tensors, g = example(3, 30, 28, 16, 272, 16, taps)
    threads, runs = torch.get_num_threads(), []
    try:
        for n in (1, 2, 2, 3):
            torch.set_num_threads(n)
            y, dy = gradients(fused, tensors, g)
            runs.append([y, *dy])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(map(torch.equal, runs[0], other))


def test_nan_stays_with_its_neighbours():
    tensors, _ = example()
    clean = fused(*tensors)
    tensors[0][1, 4, 5, 3] = torch.nan
    y = fused(*tensors)
    seen = torch.zeros(y.shape[:3], dtype=torch.bool)
    seen[1, 3:6, 4:7] = True
    assert y[seen].isnan().all()
    assert torch.equal(y[~seen], clean[~seen])


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_far_out(tanh):
    """Where it is zero, or the identity, or overflows a naive exponential."""
    u = torch.tensor([-1e30, -90.0, -20.0, -6.0, -1e-30, 0.0, 1e-30, 6.0, 20.0, 90.0, 1e30])
    u = torch.nn.functional.pad(u, (0, 5)).view(1, 1, 1, 16)
    w = torch.eye(16), torch.zeros(16), None, None, torch.eye(16), torch.zeros(16)
    y, (dx, *_) = gradients(by("native", tanh), (u, *w), torch.ones_like(u))
    want, (dwant, *_) = gradients(by("composed", tanh), exact((u, *w)), torch.ones_like(u).double())
    assert torch.allclose(y.double(), want, rtol=1e-5, atol=1e-6)
    inside = u.abs() < 1e20  # beyond, torch's own slope is not a number
    assert torch.allclose(dx.double()[inside], dwant[inside], rtol=1e-5, atol=1e-6)


def test_strided_maps_and_gradients():
    (x, *w), g = example()
    want, dwant = gradients(fused, (x, *w), g)
    wide, wide_g = (t.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1) for t in (x, g))
    y, dy = gradients(fused, (wide, *w), wide_g)
    assert torch.equal(y, want)
    assert all(map(torch.equal, dy, dwant))


@pytest.mark.parametrize("taps", [False, True])
def test_opcheck(taps):
    tensors, g = example(1, 3, 4, 5, 16, 5, taps)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.saccade.feed_forward.default, (*leaves, True, "native", True))
    tensors = [None if t is None else t.detach() for t in tensors]
    _, h = torch.ops.saccade.feed_forward(*tensors, False, "native", True)
    expected = [t is not None for t in tensors]
    backward = (g, *tensors, False, None, h, "native", expected)
    torch.library.opcheck(torch.ops.saccade.feed_forward_backward.default, backward)


def test_second_derivatives_are_those_of_the_equation():
    tensors, g = example(1, 3, 4, 5, 16, 5)

    def twice(f, leaves, g):
        once = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        total = sum(t.square().sum() for t in once)
        return torch.autograd.grad(total, leaves, materialize_grads=True)  # b2 is in no gradient

    leaves = [t.requires_grad_() for t in tensors]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    got, want = twice(fused, leaves, g), twice(plain, doubles, g.double())
    for one, expected in zip(got, want, strict=True):
        assert relative(one, expected) < 1e-4


def test_compiled_is_the_same(untyped):
    tensors, g = example()
    want, dwant = gradients(fused, tensors, g)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    y, dy = gradients(compiled, tensors, g)
    torch.testing.assert_close(y, want)
    for got, expected in zip(dy, dwant, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("taps", [False, True])
def test_flops_are_those_of_the_equation(taps):
    tensors, g = example(taps=taps)

    def counted(f):
        leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
        with FlopCounterMode(display=False) as forward:
            y = f(*leaves)
        with FlopCounterMode(display=False) as backward:
            y.backward(g)
        return forward.get_total_flops(), backward.get_total_flops()

    want = 2 * (2 * 9 * 11) * 96 * (24 + 24 + 9 * taps)
    assert counted(fused) == counted(plain) == (want, 2 * want)


@pytest.mark.slow
def test_no_wide_map_but_the_one_that_is_kept():
    tensors, g = example(1, 64, 64, 16, 128, 16)
    wide = 4 * 64 * 64 * 128
    with torch.no_grad():
        assert peak_memory(lambda: fused(*tensors)) < 0.5 * wide
    assert peak_memory(lambda: gradients(fused, tensors, g)) < 1.6 * wide
    assert peak_memory(lambda: gradients(plain, tensors, g)) > 3 * wide


def test_what_does_not_fit_is_said():
    (x, *w), _ = example()
    with pytest.raises(ValueError, match=r"feed_forward: x is B H W C"):
        feed.FEED_FORWARD(x[..., :5], *w, False)
