"""Feed-forwards with normalised branches: the plain form is the oracle, in double precision."""

import pytest
import torch

from saccade.ops import native
from saccade.ops.branches import FEED_BRANCHES, BranchWeights, feed_branches
from tests.ops.native.oracle import gradients, relative

kernels = pytest.mark.skipif(not native.available(), reason=native.where())

SHAPES = [  # B H W C J D n; every way in which a border meets another
    (2, 5, 6, 8, 32, 8, 4), (40, 1, 1, 3, 16, 5, 1), (3, 1, 14, 4, 16, 4, 2),
    (9, 4, 1, 4, 16, 4, 2), (12, 2, 2, 4, 16, 4, 3), (5, 3, 3, 4, 48, 4, 2), (3, 2, 7, 4, 16, 4, 2),
    (1, 9, 13, 8, 144, 8, 4), (1, 17, 70, 4, 16, 4, 2), (3, 20, 20, 8, 32, 8, 2),
]  # fmt: skip


def example(B, H, W, C, J, D, n):
    tensors = [
        torch.randn(B, H, W, C), torch.randn(J, C), torch.randn(J), torch.randn(n, J, 1, 3, 3) / 3,
        torch.rand(n, J) + 0.5, torch.randn(n, J), torch.randn(D, J) / J**0.5, torch.randn(D),
    ]  # fmt: skip
    return tensors, torch.randn(B, H, W, D)


def compare(tensors, g, skip=True, tanh=False):
    def by(form):
        return lambda *t: FEED_BRANCHES(*t, 1e-3, skip, tanh, backend=form)

    y, dy = gradients(by("native"), tensors, g)
    want, dwant = gradients(by("composed"), [t.double() for t in tensors], g.double())
    assert relative(y, want) <= 1e-5
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected, least=want.abs().max()) <= 1e-4
    return [y, *dy]


@kernels
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equation(shape, skip):
    compare(*example(*shape), skip, tanh=not skip)


@kernels
def test_a_backward_leaves_the_gradients_of_others_alone():
    """They share memory for what is needed within one."""
    results = [compare(*example(*shape)) for shape in (SHAPES[7], SHAPES[0], SHAPES[7])]
    copies = [[tensor.clone() for tensor in result] for result in results]
    compare(*example(*SHAPES[9]))
    for result, copy in zip(results, copies, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(result, copy, strict=True))


@kernels
@pytest.mark.parametrize("name", native.INSTRUCTION_SETS)
def test_every_instruction_set(name):
    try:
        native.use(name)
    except ValueError:
        pytest.skip(f"this machine has no {name}")
    try:
        compare(*example(2, 7, 9, 8, 48, 8, 3))
    finally:
        native.use("")


@kernels
def test_no_bit_of_the_result_depends_on_the_number_of_threads():
    tensors, g = example(3, 20, 11, 8, 160, 8, 2)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(compare(tensors, g)[0])
    torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@kernels
def test_statistics_come_with_the_result():
    (x, *w), _ = example(2, 5, 6, 8, 32, 8, 4)
    w = BranchWeights(*w)
    assert feed_branches(x, w, 1e-5) is None  # nothing is kept where no backward can come
    y, statistics = feed_branches(x.requires_grad_(), w, 1e-5)
    h = torch.nn.functional.linear(x, w.w1, w.b1).permute(0, 3, 1, 2).double()
    z = [torch.nn.functional.conv2d(h, k.double(), padding=1, groups=32) for k in w.k]
    mean = torch.stack([t.mean((0, 2, 3)) for t in z])
    var = torch.stack([t.var((0, 2, 3), correction=0) for t in z])
    assert relative(statistics[0], mean) <= 1e-5
    assert relative(statistics[1], var) <= 1e-5
    assert not statistics.requires_grad
    assert y.requires_grad


def test_what_does_not_fit_is_refused():
    (x, *w), _ = example(2, 5, 6, 8, 32, 8, 4)
    w[2] = w[2][:, :16]
    with pytest.raises(ValueError, match="k is n J 1 3 3"):
        FEED_BRANCHES(x, *w, 1e-5, True, False)
