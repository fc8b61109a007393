"""The backbone's contract, over every variant."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import saccade
from saccade.models.backbone import Backbone, drop_rates

every = pytest.mark.parametrize("name", saccade.names())
small = pytest.mark.parametrize("name", saccade.names("*_nano"))


@every
def test_maps_have_the_declared_widths_and_strides(name):
    """On the meta device: shapes alone, for the largest models too; other sizes are below."""
    backbone = saccade.build(name, device="meta").backbone.eval()
    assert isinstance(backbone, Backbone)
    H, W = 33, 47
    maps = backbone(torch.empty(1, 3, H, W, device="meta"))
    for x, width, stride in zip(maps, backbone.widths, backbone.strides, strict=True):
        assert x.shape == (1, width, math.ceil(H / stride), math.ceil(W / stride))


@small
@settings(max_examples=15, deadline=None)
@given(H=st.integers(32, 130), W=st.integers(32, 130))
def test_any_size_from_32_pixels_up(name, H, W):
    torch.manual_seed(0)
    backbone = saccade.build(name).backbone.eval()
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, H, W))
    for x, stride in zip(maps, backbone.strides, strict=True):
        assert x.shape[2:] == (math.ceil(H / stride), math.ceil(W / stride))
        assert x.isfinite().all()


@small
def test_images_of_a_batch_do_not_see_each_other(name):
    model = saccade.build(name, num_classes=5).eval()
    x = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]), rtol=1e-4, atol=1e-5)


@small
@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 3, 31, 64), "at least 32x32 pixels, got 31x64"),
        ((1, 1, 64, 64), "reads 3 channels, got 1"),
        ((3, 64, 64), "4 axes"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_in_a_sentence(name, shape, says, untyped):
    with pytest.raises(ValueError, match=says):
        saccade.build(name)(torch.randn(shape))
    with pytest.raises(ValueError, match=says):
        saccade.build(name).backbone(torch.randn(shape))


def test_drop_path_grows_linearly_over_all_blocks():
    assert drop_rates(0.3, (1, 2, 1)) == [[0.0], pytest.approx([0.1, 0.2]), [pytest.approx(0.3)]]
    assert drop_rates(0.1, (1,)) == [[0.0]]
