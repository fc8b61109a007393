"""Key-only attention: the equation in loops, its three forms, and low precision."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.ops import linglo as ops

FORMS = [ops.tokenwise, ops.folded, ops.collapsed]


def letters(C, h, dtype=torch.float64, spread=1.0):
    def draw(*shape):
        return (torch.randn(*shape, dtype=torch.float64) * spread / math.sqrt(C)).to(dtype)

    return ops.Weights(
        wk=draw(C, C), bk=draw(C), wv=draw(C, C), bv=draw(C), ws=draw(h, C) * 4,
        u1=draw(C, C), b1=draw(C), u2=draw(C, C), b2=draw(C),
    )  # fmt: skip


def loops(x, w):
    """Eq. 2-4, one number at a time where it matters."""
    B, N, C = x.shape
    h = len(w.ws)
    d = C // h
    y = torch.empty_like(x)
    for b in range(B):
        k = torch.stack([w.wk @ x[b, n] + w.bk for n in range(N)])
        v = torch.stack([w.wv @ x[b, n] + w.bv for n in range(N)])
        g = torch.zeros(C, dtype=x.dtype)
        for i in range(h):
            e = [math.exp((w.ws[i] @ k[n]).item() / math.sqrt(d)) for n in range(N)]
            for n in range(N):
                g[i * d : (i + 1) * d] += e[n] / sum(e) * k[n, i * d : (i + 1) * d]
        for n in range(N):
            y[b, n] = w.u2 @ (w.u1 @ (g * v[n]) + w.b1 + k[n]) + w.b2
    return y


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("B", "N", "C", "h"), [(2, 7, 12, 3), (1, 20, 8, 1), (3, 1, 8, 8)])
def test_each_form_is_the_equation(form, B, N, C, h):
    x, w = torch.randn(B, N, C, dtype=torch.float64), letters(C, h)
    torch.testing.assert_close(form(x, w), loops(x, w), rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    B=st.integers(1, 3), N=st.integers(1, 80), h=st.integers(1, 5), d=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_forms_agree_forward_and_backward(B, N, h, d, seed):
    torch.manual_seed(seed)
    x = torch.randn(B, N, h * d, dtype=torch.float64)
    w, g = letters(h * d, h), torch.randn(B, N, h * d, dtype=torch.float64)

    def run(form):
        inputs = [t.clone().requires_grad_() for t in (x, *w)]
        y = form(inputs[0], ops.Weights(*inputs[1:]))
        return y, *torch.autograd.grad((y * g).sum(), inputs)

    expected = run(ops.tokenwise)
    for form in (ops.folded, ops.collapsed):
        for a, b in zip(run(form), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    inputs = [
        t.requires_grad_() for t in (torch.randn(2, 5, 6, dtype=torch.float64), *letters(6, 2))
    ]
    assert torch.autograd.gradcheck(lambda x, *w: form(x, ops.Weights(*w)), inputs)


def test_forms_agree_in_fp32():
    x, w = torch.randn(2, 500, 64), letters(64, 2, torch.float32)
    for form in (ops.folded, ops.collapsed):
        torch.testing.assert_close(form(x, w), ops.tokenwise(x, w), rtol=1e-5, atol=1e-5)


def test_saliency_is_a_distribution_over_tokens():
    k = torch.randn(2, 30, 12)
    a = ops.saliency(k, torch.randn(2, 30, 3) * 5)
    assert (a >= 0).all()
    torch.testing.assert_close(a.sum(1), torch.ones(2, 3))


@pytest.mark.parametrize("form", FORMS)
def test_permuted_tokens_give_permuted_outputs(form):
    x, w = torch.randn(1, 40, 12, dtype=torch.float64), letters(12, 3)
    order = torch.randperm(40)
    torch.testing.assert_close(form(x[:, order], w), form(x, w)[:, order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("B", "N", "C", "form"),
    [
        (8, 49, 512, "tokenwise"), (1, 196, 320, "tokenwise"), (8, 256, 512, "tokenwise"),
        (8, 196, 320, "folded"), (64, 100, 256, "folded"),
        (1, 3136, 64, "collapsed"), (8, 784, 128, "collapsed"), (8, 1024, 512, "collapsed"),
    ],
)  # fmt: skip
def test_the_cheapest_form_is_chosen(B, N, C, form):
    assert ops.cheapest(B, N, C) == form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_stays_finite_and_near(form, dtype):
    """More tokens than fp16 could average (1/N is below its normal range), and strong saliency."""
    x, w = torch.randn(1, 50_000, 16) * 3, letters(16, 2, torch.float32)
    w = w._replace(ws=w.ws * 10)
    low = form(x.to(dtype), ops.Weights(*(t.to(dtype) for t in w)))
    exact = form(x.to(dtype).double(), ops.Weights(*(t.to(dtype).double() for t in w)))
    assert low.isfinite().all()
    assert (low - exact).norm() / exact.norm() < (0.02 if dtype == torch.bfloat16 else 0.004)


@pytest.mark.parametrize("form", FORMS)
def test_autocast_keeps_softmax_and_sum_in_fp32(form):
    x, w = torch.randn(1, 4000, 32), letters(32, 2, torch.float32)
    seen = []
    original = ops.weighted_sum

    def spy(a, x):
        result = original(a, x)
        seen.append((a.dtype, result.dtype))
        return result

    ops.weighted_sum = spy
    try:
        with torch.autocast("cpu", torch.bfloat16):
            y = form(x, w)
    finally:
        ops.weighted_sum = original
    assert seen == [(torch.float32, torch.float32)]
    exact = ops.tokenwise(x.double(), ops.Weights(*(t.double() for t in w)))
    assert (y - exact).norm() / exact.norm() < 0.02


def test_collapsed_keeps_no_key_or_value():
    """What backward keeps is the input and small matrices: nothing else of the tokens' size."""
    x, w = torch.randn(1, 2000, 32, requires_grad=True), letters(32, 1, torch.float32)
    w = ops.Weights(*(t.requires_grad_() for t in w))
    sizes = {}

    def keep(t):
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        ops.collapsed(x, w)
    large = [n for n in sizes.values() if n >= x.nbytes]
    assert large == [x.nbytes]
