"""The layer is an nn.Conv2d to whoever looks at it."""

import pytest
import torch
from torch import nn

from saccade.layers.conv import Conv1x1, Conv3x3


def test_same_as_conv2d():
    ours, plain = Conv3x3(128, 8), nn.Conv2d(128, 8, 3, padding=1)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(1, 128, 32, 33).to(memory_format=torch.channels_last)
    ours, plain = (layer.to(memory_format=torch.channels_last) for layer in (ours, plain))
    assert isinstance(ours, nn.Conv2d)
    y, want = ours(x), plain(x)
    torch.testing.assert_close(y, want)
    y.square().sum().backward()
    want.square().sum().backward()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-3)
        assert a.grad.stride() == b.grad.stride()


def test_without_bias():
    assert Conv3x3(3, 4, bias=False).bias is None


def test_one_node_to_fx(untyped):
    net = nn.Sequential(Conv3x3(3, 4), nn.ReLU())
    traced = torch.fx.symbolic_trace(net)
    x = torch.randn(1, 3, 5, 6)
    assert torch.equal(traced(x), net(x))


def test_strided():
    ours, plain = Conv3x3(4, 5, stride=2), nn.Conv2d(4, 5, 3, 2, padding=1)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 7, 8)
    assert torch.equal(ours(x), plain(x))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_one_pixel(layout, stride, bias):
    ours, plain = Conv1x1(6, 8, stride, bias), nn.Conv2d(6, 8, 1, stride, bias=bias)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 6, 31, 33).to(memory_format=layout)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    y, want = ours(leaves[0]), plain(leaves[1])
    torch.testing.assert_close(y, want)
    y.square().sum().backward()
    want.square().sum().backward()
    pairs = [leaves, *zip(ours.parameters(), plain.parameters(), strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-3)


def test_one_pixel_is_one_node_to_fx(untyped):
    net = nn.Sequential(Conv1x1(3, 4), nn.ReLU())
    x = torch.randn(2, 3, 15, 16).to(memory_format=torch.channels_last)
    assert torch.equal(torch.fx.symbolic_trace(net)(x), net(x))


def test_one_pixel_of_an_image_without_a_batch_or_with_an_empty_one(untyped):
    ours, plain = Conv1x1(6, 8), nn.Conv2d(6, 8, 1)
    plain.load_state_dict(ours.state_dict())
    for shape in ((6, 15, 16), (0, 6, 15, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(ours(x), plain(x))


def test_one_pixel_with_other_settings():
    """As surgery on a network may leave them."""
    ours, plain = Conv1x1(6, 8), nn.Conv2d(6, 8, 1, (2, 1), padding=1)
    plain.load_state_dict(ours.state_dict())
    ours.stride, ours.padding = plain.stride, plain.padding
    x = torch.randn(2, 6, 15, 16).to(memory_format=torch.channels_last)
    torch.testing.assert_close(ours(x), plain(x))
