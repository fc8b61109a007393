import math

import pytest
import torch
from torch.nn import functional as F

from saccade.layers.stem import ConvDown, PatchDown, Patches, fill


@pytest.mark.parametrize(("H", "W"), [(32, 32), (33, 35), (37, 64)])
@pytest.mark.parametrize(("make", "stride"), [
    (lambda: ConvDown(3, 8, 7, 4), 4), (lambda: ConvDown(3, 8, 3, 2), 2),
    (lambda: PatchDown(3, 8, 4), 4), (lambda: PatchDown(3, 8, 16), 16),
])  # fmt: skip
def test_down_is_ceil_of_size_over_stride(make, stride, H, W):
    y = make()(torch.randn(1, 3, H, W))
    assert y.shape == (1, 8, math.ceil(H / stride), math.ceil(W / stride))


def test_output_is_normed_over_channels():
    y = ConvDown(3, 16, 3, 2)(torch.randn(2, 3, 16, 16))
    torch.testing.assert_close(y.mean(1), torch.zeros(2, 8, 8), atol=1e-5, rtol=0)


def test_fill_adds_zeros_below_and_right():
    x = torch.ones(1, 1, 3, 4)
    y = fill(x, 4)
    assert y.shape == (1, 1, 4, 4)
    assert y[0, 0, 3].sum() == 0
    assert fill(torch.ones(1, 1, 8, 4), 4).shape == (1, 1, 8, 4)


def test_patches_are_one_convolution_and_nothing_else():
    layer = Patches(3, 8, 4, 4, bias=False)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert layer.weight.std().item() == pytest.approx(48**-0.5, rel=0.15)
    x = torch.randn(1, 3, 6, 9)
    y = layer(x)
    assert y.shape == (1, 8, 2, 3)
    filled = F.pad(x, (0, 3, 0, 2))
    torch.testing.assert_close(y, F.conv2d(filled, layer.weight, stride=4))
