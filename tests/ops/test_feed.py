"""The feed-forward by its equation in plain loops, and which form a call takes."""

import math
from dataclasses import replace

import pytest
import torch

from saccade.ops import native
from saccade.ops.feed import FEED_FORWARD, FeedForwardWeights, composed, feed_forward
from saccade.ops.native import feed as kernel


def letters(C, J, D, taps=True, dtype=torch.float32):
    """Parameters that neither saturate GELU nor leave it linear."""
    return FeedForwardWeights(
        torch.randn(J, C, dtype=dtype) / C**0.5,
        torch.randn(J, dtype=dtype) * 0.3,
        torch.randn(J, 1, 3, 3, dtype=dtype) / 3 if taps else None,
        torch.randn(J, dtype=dtype) * 0.3 if taps else None,
        torch.randn(D, J, dtype=dtype) / J**0.5,
        torch.randn(D, dtype=dtype),
    )


def looped(x, w, tanh):
    """The equation, number by number."""
    B, H, W, _ = x.shape
    J, D = len(w.w1), len(w.w2)
    h = torch.zeros(B, H, W, J, dtype=x.dtype)
    y = torch.zeros(B, H, W, D, dtype=x.dtype)
    places = [(b, i, j) for b in range(B) for i in range(H) for j in range(W)]
    for b, i, j in places:
        h[b, i, j] = w.w1 @ x[b, i, j] + w.b1
    for b, i, j in places:
        u = h[b, i, j].clone()
        if w.taps is not None:
            u = w.shift.clone()
            for p in range(3):
                for q in range(3):
                    if 0 <= i + p - 1 < H and 0 <= j + q - 1 < W:
                        u += w.taps[:, 0, p, q] * h[b, i + p - 1, j + q - 1]
        for c in range(J):
            t = u[c].item()
            if tanh:
                share = (1 + math.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))) / 2
            else:
                share = (1 + math.erf(t / math.sqrt(2))) / 2
            u[c] = t * share
        y[b, i, j] = w.w2 @ u + w.b2
    return y


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("taps", [False, True])
def test_both_forms_are_the_equation(taps, tanh):
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 5, 6, dtype=torch.float64), letters(6, 16, 3, taps, torch.float64)
    want = looped(x, w, tanh)
    torch.testing.assert_close(composed(x, *w, tanh), want, rtol=1e-12, atol=1e-12)
    w = FeedForwardWeights(*(None if t is None else t.float() for t in w))
    got = feed_forward(x.float(), w, tanh)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_gradcheck_of_the_plain_form():
    torch.manual_seed(0)
    x, w = torch.randn(1, 3, 4, 2, dtype=torch.float64), letters(2, 4, 3, dtype=torch.float64)
    tensors = [t.requires_grad_() for t in (x, *w)]
    assert torch.autograd.gradcheck(lambda *tensors: composed(*tensors, False), tensors)


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_who_takes_which_call(monkeypatch):
    fast = replace(FEED_FORWARD.kernels["native"], ready=lambda: True)
    monkeypatch.setitem(FEED_FORWARD.kernels, "native", fast)

    def fuses(x, w):
        return FEED_FORWARD.choose((x, *w, False)) == "native"

    x, w = torch.randn(1, 8, 8, 4), letters(4, 16, 4)
    assert fuses(x, w)
    assert not fuses(x.double(), [t.double() for t in w])
    assert not fuses(x, letters(4, 20, 4))  # no whole vectors
    assert not fuses(x[:, :1], w)  # not worth laying out matrices
    assert not fuses(x.to("meta"), [t.to("meta") for t in w])
    assert not fuses(x, w._replace(b1=w.b1.double()))
    with torch.autocast("cpu", torch.bfloat16):
        assert not fuses(x, w)
    seen = []
    torch.func.vmap(lambda t: seen.append(fuses(t[None], w)) or t)(x)
    assert seen == [False]
    monkeypatch.setitem(FEED_FORWARD.kernels, "native", replace(fast, ready=lambda: False))
    assert not fuses(x, w)


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_the_dispatcher_calls_the_kernel(monkeypatch):
    called = []
    run = kernel.run
    monkeypatch.setattr(kernel, "run", lambda name, call: (called.append(name), run(name, call)))
    x, w = torch.randn(1, 8, 8, 4), letters(4, 16, 4)
    feed_forward(x, w)
    assert bool(called) == (FEED_FORWARD.choose((x, *w, False)) == "native")
