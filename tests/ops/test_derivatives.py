"""What the fused operators leave to plain forms: second derivatives and torch.func."""

from functools import partial

import pytest
import torch

from saccade.ops import native, qna, sasa

aggregate = partial(qna.aggregate, backend="native")
local_attention = partial(sasa.local_attention, backend="native")

built = pytest.mark.skipif(not native.available(), reason=native.where())


def leaves(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@built
@pytest.mark.slow
@pytest.mark.parametrize("border", ["zero", "mask"])
def test_second_derivatives_of_local_attention(border):
    inputs = leaves(*[(1, 4, 3, 4)] * 3, *[(1, 3, 1)] * 2)
    assert torch.autograd.gradgradcheck(lambda *t: local_attention(*t, 2, 3, border), inputs)


@built
@pytest.mark.slow
def test_second_derivatives_without_positions():
    inputs = leaves(*[(1, 4, 3, 4)] * 3)

    def f(q, k, v):
        return local_attention(q, k, v, None, None, 2, 3)

    assert torch.autograd.gradgradcheck(f, inputs)


@built
@pytest.mark.slow
@pytest.mark.parametrize(("stride", "fold"), [(1, True), (2, True), (1, False)])
def test_second_derivatives_of_aggregation(stride, fold):
    s, v, rpe, ws = leaves((1, 3, 4, 2, 1), (1, 3, 4, 1, 2), *[(3, 3, 2, 1)] * 2)
    tables = (rpe, ws) if fold else (rpe,)

    def f(s, v, rpe, ws=None):
        return aggregate(s, v, rpe, ws, stride, 1, fold)

    assert torch.autograd.gradgradcheck(f, (s, v, *tables))


def test_transforms_go_to_plain_forms():
    """vmap and jacrev through the public functions, in fp32, where kernels would run."""
    torch.manual_seed(0)
    q, row, col = torch.randn(3, 1, 8, 5, 6), torch.randn(1, 3, 2), torch.randn(1, 3, 2)

    def local(q):
        return sasa.local_attention(q, q, q, row, col, 2, 3)

    s, v, rpe = (
        torch.randn(3, 1, 4, 5, 2, 2),
        torch.randn(3, 1, 4, 5, 2, 3),
        torch.randn(3, 3, 2, 2),
    )

    def learned(s, v):
        return qna.aggregate(s, v, rpe, rpe, 1, 1)

    for f, inputs in ((local, (q,)), (learned, (s, v))):
        one_by_one = torch.stack([f(*sample) for sample in zip(*inputs, strict=True)])
        torch.testing.assert_close(torch.vmap(f)(*inputs), one_by_one, rtol=1e-5, atol=1e-5)
        sample = [x[0] for x in inputs]
        jacobian = torch.func.jacrev(f)(*sample)
        expected = torch.autograd.functional.jacobian(lambda x, f=f, rest=sample[1:]: f(x, *rest),
                                                      sample[0])  # fmt: skip
        torch.testing.assert_close(jacobian, expected, rtol=1e-4, atol=1e-5)
