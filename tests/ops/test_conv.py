"""The convolution with its weights' gradient by products, against PyTorch's own."""

import pytest
import torch
from torch.nn import functional as F

from saccade.ops import conv


@pytest.fixture
def avx2(monkeypatch):
    """As on a CPU where products are faster, and for maps of every size."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(conv, "PIXELS", 1)
    monkeypatch.setattr(conv, "WIDTH", 1)


def case(B=2, C=5, D=3, H=4, W=7, dtype=torch.float32, bias=True):
    x = torch.randn(B, C, H, W, dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(D, C, 3, 3, dtype=dtype)
    tensors = [x, weight, torch.randn(D, dtype=dtype) if bias else None]
    return [t if t is None else t.requires_grad_() for t in tensors]


def products(y):
    return "_Convolve" in type(y.grad_fn).__name__


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (3, 2), (4, 7), (9, 8)])
def test_weight_gradient_is_the_convolutions(size):
    x, weight, _ = case(H=size[0], W=size[1], dtype=torch.float64)
    y = F.conv2d(x, weight, padding=1)
    grad = torch.randn_like(y)
    (want,) = torch.autograd.grad(y, weight, grad)
    torch.testing.assert_close(conv.weight_gradient(grad, x), want)


@pytest.mark.parametrize("bias", [True, False])
def test_same_as_a_convolution(avx2, bias):
    tensors = case(bias=bias)
    present = [t for t in tensors if t is not None]
    y, want = conv.conv3x3(*tensors), F.conv2d(*tensors, padding=1)
    assert products(y)
    assert torch.equal(y, want)
    grad = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(out, present, grad) for out in (y, want))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_gradients():
    tensors = case(B=1, C=2, D=2, H=3, W=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(conv._Convolve.apply, tensors)
    assert torch.autograd.gradgradcheck(conv._Convolve.apply, tensors)


def test_only_what_is_wanted(avx2):
    x, weight, bias = case()
    y = conv.conv3x3(x.detach(), weight, bias)
    grads = torch.autograd.grad(y.sum(), [weight])
    torch.testing.assert_close(
        grads, torch.autograd.grad(F.conv2d(x, weight, bias, padding=1).sum(), [weight])
    )


def test_left_to_pytorch(avx2, monkeypatch):
    x, weight, bias = case()
    assert products(conv.conv3x3(x, weight, bias))
    assert not products(conv.conv3x3(x.contiguous(), weight, bias))
    assert not products(conv.conv3x3(x, weight.detach(), bias))
    with torch.no_grad():
        assert conv.conv3x3(x, weight, bias).grad_fn is None
    with torch.autocast("cpu", torch.bfloat16):
        assert conv.conv3x3(x, weight, bias).dtype == torch.bfloat16
    per_image = torch.func.vmap(
        torch.func.grad(lambda w, x: conv.conv3x3(x[None], w).square().sum()), (None, 0)
    )(weight.detach(), x.detach())
    assert per_image.shape == (2, *weight.shape)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert not products(conv.conv3x3(x, weight, bias))


def test_small_maps_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert products(conv.conv3x3(*case(C=128, H=32, W=32)))
    assert not products(conv.conv3x3(*case(C=127, H=32, W=32)))
    assert not products(conv.conv3x3(*case(C=128, H=32, W=31)))
