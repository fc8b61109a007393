"""The moments of all 3x3 windows: the plain form is the oracle, in double precision."""

import pytest
import torch
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.moments import in_one_pass, moments, windows
from tests.ops.native.oracle import gradients, relative

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=native.where()),
    pytest.mark.usefixtures("everywhere"),
]

SHAPES = [  # B H W C; every way in which a border meets another
    (2, 5, 6, 32), (1, 1, 1, 16), (3, 1, 4, 16), (2, 4, 1, 16), (1, 2, 2, 16), (2, 3, 3, 48),
    (1, 2, 7, 16), (1, 9, 2, 16), (1, 9, 13, 144), (2, 17, 70, 16),
]  # fmt: skip


def compare(h):
    g = torch.randn(h.shape[3], 10, 10, dtype=torch.float64)
    y, (dh,) = gradients(lambda h: moments(h, "native"), (h,), g)
    want, (dwant,) = gradients(windows, (h.double(),), g)
    assert relative(y, want) <= 1e-6
    assert relative(dh, dwant) <= 2e-6
    return y, dh


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equation(shape):
    compare(torch.randn(shape))


@pytest.mark.parametrize("name", native.INSTRUCTION_SETS)
def test_every_instruction_set(name):
    try:
        native.use(name)
    except ValueError:
        pytest.skip(f"no {name} here")
    try:
        compare(torch.randn(2, 6, 9, 48))
    finally:
        native.use()


def test_no_bit_depends_on_the_number_of_threads():
    h, threads = torch.randn(3, 20, 11, 160), torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        torch.manual_seed(1)
        results.append(compare(h))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


def test_they_are_the_statistics_of_a_convolution():
    """Also where the mean is large: the sums are taken in double precision."""
    h, k = torch.randn(4, 30, 30, 16) + 20, torch.randn(16, 9) / 3
    M = moments(h)
    z = F.conv2d(h.permute(0, 3, 1, 2).double(), k.double().view(16, 1, 3, 3), padding=1, groups=16)
    mean = (M[:, :9, 9] * k).sum(1)
    square = torch.einsum("ci,cij,cj->c", k.double(), M[:, :9, :9], k.double())
    assert relative(mean, z.mean((0, 2, 3))) <= 1e-6
    assert relative(square - mean**2, z.var((0, 2, 3), correction=0)) <= 1e-5


def test_channels_that_fill_no_vectors_are_left_to_convolutions():
    assert in_one_pass(torch.randn(1, 4, 4, 32))
    assert not in_one_pass(torch.randn(1, 4, 4, 24))
    assert not in_one_pass(torch.randn(1, 4, 4, 32).double())
    assert not in_one_pass(torch.randn(0, 4, 4, 32))
