import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from saccade.layers.block import Block, FeedForward, SEBasicBlock
from saccade.layers.position import RPCPE
from saccade.ops import feed, native


def test_block_is_two_residual_halves():
    mix, ffn = nn.Linear(6, 6), FeedForward(6, 12)
    block = Block(6, mix, ffn)
    x = torch.randn(2, 6, 3, 4)
    y = x.permute(0, 2, 3, 1)
    y = y + mix(block.mix_norm(y))
    y = y + ffn(block.ffn_norm(y))
    torch.testing.assert_close(block(x), y.permute(0, 3, 1, 2))


def test_positions_act_between_the_linear_layers():
    position = RPCPE(12)
    ffn = FeedForward(6, 12, position)
    x = torch.randn(2, 3, 4, 6)
    wide = position(ffn.widen(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(ffn(x), ffn.narrow(nn.functional.gelu(wide)))


def test_channels_last_goes_through_unchanged():
    block = Block(8, nn.Identity(), FeedForward(8, 16, RPCPE(16)))
    x = torch.randn(2, 8, 6, 5).contiguous(memory_format=torch.channels_last)
    assert block(x).is_contiguous(memory_format=torch.channels_last)


def test_se_block_is_residual_with_a_gate():
    block = SEBasicBlock(32).eval()
    x = torch.randn(2, 32, 5, 5)
    y = block.norm2(block.conv2(torch.relu(block.norm1(block.conv1(x)))))
    gate = block.excite(y)
    assert gate.shape == (2, 32, 1, 1)
    assert ((gate > 0) & (gate < 1)).all()
    torch.testing.assert_close(block(x), torch.relu(x + y * gate))


# -- the feed-forward in one piece, and all that must still be seen of its parts ------------------


def step_by_step(ffn, x):
    h = ffn.widen(x)
    if ffn.position is not None:
        h = ffn.position(h.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return ffn.narrow(ffn.act(h))


def kinds():
    fused = RPCPE(32).eval().fuse()
    return {
        "alone": FeedForward(8, 32),
        "rp-cpe": FeedForward(8, 32, RPCPE(32)),
        "fused": FeedForward(8, 32, fused),
        "norm, learning": FeedForward(8, 32, RPCPE(32, norm=True)),
        "norm, learnt": FeedForward(8, 32, RPCPE(32, norm=True)).eval(),
        "no biases": _without_bias(FeedForward(8, 32)),
        "tanh": FeedForward(8, 32, act=lambda: nn.GELU(approximate="tanh")),
        "relu": FeedForward(8, 32, act=nn.ReLU),
        "another position": FeedForward(8, 32, nn.Conv2d(32, 32, 3, padding=1, groups=32)),
        "another widening": _replaced(FeedForward(8, 32)),
    }


def _without_bias(ffn):
    ffn.widen.bias = ffn.narrow.bias = None
    return ffn


def _replaced(ffn):
    ffn.widen = nn.Sequential(ffn.widen, nn.Dropout(0.0))
    return ffn


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("pays", [True, False])
def test_it_is_its_parts(kind, pays, monkeypatch):
    ready = (lambda: True) if pays and native.available() else (lambda: False)
    kernel = replace(feed.FEED_FORWARD.kernels["native"], ready=ready)
    monkeypatch.setitem(feed.FEED_FORWARD.kernels, "native", kernel)
    torch.manual_seed(0)
    ffn = kinds()[kind]
    other = copy.deepcopy(ffn)
    x = torch.randn(2, 9, 7, 8)
    y, want = ffn(x), step_by_step(other, x)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-6)
    y.square().sum().backward()
    want.square().sum().backward()
    for a, b in zip(ffn.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["widen", "act", "position", "narrow"])
@pytest.mark.parametrize("hook", ["forward_hook", "full_backward_hook"])
def test_a_hook_on_a_part_is_called(part, hook):
    ffn, seen = FeedForward(8, 32, RPCPE(32)), []
    getattr(getattr(ffn, part), f"register_{hook}")(lambda *_: seen.append(1))
    ffn(torch.randn(2, 9, 7, 8)).sum().backward()
    assert seen


def test_tokens_go_through(untyped):
    ffn, x = FeedForward(8, 32), torch.randn(2, 49, 8)
    torch.testing.assert_close(ffn(x), ffn.narrow(ffn.act(ffn.widen(x))), rtol=1e-5, atol=1e-6)


def test_layers_of_another_kind_are_called():
    class Coded(nn.Module):
        """As quantised ones do, it decodes its weight when asked."""

        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def weight(self):
            return self.linear.weight

        def forward(self, x):
            return self.linear(x)

    ffn, x = FeedForward(8, 32), torch.randn(2, 9, 7, 8)
    want = ffn(x)
    ffn.widen, ffn.narrow = Coded(ffn.widen), Coded(ffn.narrow)
    torch.testing.assert_close(ffn(x), want, rtol=1e-5, atol=1e-6)


def test_weights_elsewhere_are_refused():
    """Not computed with whatever lies in memory."""
    ffn = FeedForward(8, 32).to("meta")
    with pytest.raises((RuntimeError, ValueError)):
        ffn(torch.randn(2, 9, 7, 8))


def test_forward_derivatives():
    ffn, x, t = FeedForward(8, 32, RPCPE(32)), torch.randn(2, 9, 7, 8), torch.randn(2, 9, 7, 8)
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(ffn(forward_ad.make_dual(x, t))).tangent
        want = forward_ad.unpack_dual(step_by_step(ffn, forward_ad.make_dual(x, t))).tangent
    torch.testing.assert_close(tangent, want)
