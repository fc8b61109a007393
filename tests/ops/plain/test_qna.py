"""The walk over the offsets: every place once, whatever the dtypes, and torch's own checks."""

from functools import partial

import pytest
import torch

from saccade.ops import qna
from saccade.ops.plain.qna import _walk
from tests.ops.test_qna import GEOMETRIES, case

walked = partial(qna.aggregate, backend="walked")


@pytest.mark.parametrize(("H", "W", "k", "stride", "padding", "L"), GEOMETRIES)
def test_every_place_that_a_window_has_is_visited_once(H, W, k, stride, padding, L):
    grid = [qna.count(n, k, stride, padding) for n in (H, W)]
    visits = torch.zeros(1, *grid)
    for step in _walk((H, W), grid, k, stride, padding):
        visits[step.windows] += 1
        seen = torch.zeros(1, H, W)[step.pixels]
        assert seen.shape == visits[step.windows].shape
    inside = torch.nn.functional.pad(torch.ones(1, H, W), (padding,) * 4)
    assert torch.equal(visits, inside.unfold(1, k, stride).unfold(2, k, stride).sum((-2, -1)))


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.float64, torch.float32)])
def test_scores_and_values_of_two_dtypes(dtypes):
    s, v, rpe, ws = case()
    s, v = s.to(dtypes[0]), v.to(dtypes[1])
    inputs = [t.detach().requires_grad_() for t in (s, v, rpe.float(), ws.float())]
    y, want = walked(*inputs, 1, 1), qna.unrolled(*inputs, 1, 1)
    assert y.dtype == want.dtype == dtypes[1]
    torch.testing.assert_close(y, want)
    g = torch.randn_like(y)
    pairs = zip(
        torch.autograd.grad(y, inputs, g), torch.autograd.grad(want, inputs, g), strict=True
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fold", [True, False])
def test_opcheck(fold, untyped):
    s, v, rpe, ws = case(k=3)
    inputs = s, v.transpose(1, 2).contiguous().transpose(1, 2), rpe, ws  # strides are kept, too
    options = 2, 1, fold
    z, *residuals = torch.ops.saccade.aggregate(*inputs, *options, "walked", True)
    torch.library.opcheck(torch.ops.saccade.aggregate, (*inputs, *options, "walked", True))
    backward = (torch.randn_like(z), *inputs, *options, None, *residuals, "walked", [True] * 4)
    torch.library.opcheck(torch.ops.saccade.aggregate_backward, backward)
