import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import native
from saccade.ops.native import qna_layer
from saccade.ops.native.qna import parted
from saccade.ops.native.qna_layer import attend, takes
from tests.ops.native import oracle
from tests.ops.native.oracle import gradients, relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())


def example(B=3, H=9, W=11, C=6, heads=2, d=4, L=2, k=3, D=5, bias=True, ws=True):
    """x, weight, bias, rpe, ws, mix and its bias."""
    torch.manual_seed(0)
    J = heads * d + L * heads
    shapes = (B, H, W, C), (J, C), (J,), (k, k, L, heads), (k, k, L, heads), (D, heads * d), (D,)
    there = True, True, bias, True, ws, True, bias
    return [torch.randn(s) if t else None for s, t in zip(shapes, there, strict=True)]


def plain(x, weight, bias, rpe, ws, mix, mix_bias, stride=1, padding=1):
    s, v = parted(F.linear(x, weight, bias), rpe)
    return F.linear(
        oracle.aggregate(s, v, rpe, ws, stride, padding, True).flatten(3), mix, mix_bias
    )


@pytest.mark.parametrize("enough", [1, 2 * 4 * 9 * 11 * 12, 2**21])  # images a turn: 1, 2 and all
@pytest.mark.parametrize(("k", "L", "stride"), [(3, 2, 1), (7, 1, 1), (5, 1, 2)])
@pytest.mark.parametrize("more", [True, False])
def test_equals_the_equation(monkeypatch, enough, k, L, stride, more):
    monkeypatch.setattr(qna_layer, "ENOUGH", enough)
    tensors = example(k=k, L=L, C=8 if more else 6, bias=more, ws=more)  # 8: as wide as z
    how = stride, k // 2
    exact = [None if t is None else t.double() for t in tensors]
    want = plain(*exact, *how)
    g = torch.randn(want.shape)
    _, dwant = gradients(lambda *t: plain(*t, *how), exact, g.double())
    y, dy = gradients(lambda *t: attend(*t, *how), tensors, g)
    assert relative(y, want) <= 1e-5
    least = 0.1 * max(t.abs().max() for t in dwant)
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected, least) <= 1e-5
    with torch.no_grad():
        assert torch.equal(attend(*tensors, *how), y)


def test_maps_of_any_layout():
    x, *rest = example()
    strided = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert torch.equal(attend(strided, *rest, 1, 1), attend(x, *rest, 1, 1))


def test_backward_without_what_forward_kept():
    tensors = example()
    y, vs, z = torch.ops.saccade.attend(*tensors, 1, 1, True)
    none = torch.ops.saccade.attend(*tensors, 1, 1, False)[1:]
    g = torch.randn_like(y)
    kept, found = (
        torch.ops.saccade.attend_backward(g, *tensors, *held, 1, 1) for held in ((vs, z), none)
    )
    assert all(torch.equal(a, b) for a, b in zip(kept, found, strict=True))


def test_opcheck():
    tensors = example(H=4, W=5)
    leaves = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.saccade.attend.default, (*leaves, 1, 1, True))
    y, vs, z = torch.ops.saccade.attend(*tensors, 1, 1, True)
    inputs = (torch.randn_like(y), *(t.detach() for t in tensors), vs.detach(), z.detach(), 1, 1)
    torch.library.opcheck(torch.ops.saccade.attend_backward.default, inputs)


def test_second_derivatives():
    tensors = example(B=1, H=4, W=5)

    def penalty(f, tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        d = torch.autograd.grad(f(*leaves, 1, 1).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in d), leaves)

    want = penalty(plain, [t.double() for t in tensors])
    for a, b in zip(penalty(attend, tensors), want, strict=True):
        assert relative(a, b) < 1e-4


def test_flops_are_those_of_the_equation():
    tensors = example(B=1)
    with FlopCounterMode(display=False) as counter:
        attend(*tensors, 1, 1)
    pixels = 9 * 11
    assert counter.get_total_flops() == 2 * pixels * (6 * 12 + 8 * 5 + 9 * 2 * 8)


def test_takes_float32_alone():
    x, weight, *_ = example()
    assert takes(x, weight, 3)
    assert not takes(x.bfloat16(), weight, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert not takes(x, weight, 3)


def test_refuses_what_does_not_fit():
    x, weight, *rest = example()
    with pytest.raises(ValueError, match="attend: got"):
        torch.ops.saccade.attend(x[..., :-1], weight, *rest, 1, 1, False)
    x, *rest = example()
    for small, padding, message in ((x[:, :2], 0, "no window fits"), (x, 3, "padding < k")):
        with pytest.raises(ValueError, match=message):
            attend(small, *rest, 1, padding)
