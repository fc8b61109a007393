"""The feature pyramid and the heads, as convolutions and as attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saccade.layers.pyramid import DenseHead, FeaturePyramid
from saccade.layers.sasa import StandAloneAttention

both = pytest.mark.parametrize("kind", ["conv", "attention"])


def maps(widths, H=21, W=30):
    return [torch.randn(2, c, -(-H // 2**i), -(-W // 2**i)) for i, c in enumerate(widths)]


@both
def test_pyramid_sizes(kind):
    pyramid = FeaturePyramid((4, 8, 16), dim=32, kind=kind)
    levels = pyramid(maps((4, 8, 16)))
    assert [tuple(x.shape[1:]) for x in levels] == [
        (32, 21, 30), (32, 11, 15), (32, 6, 8), (32, 3, 4), (32, 2, 2),
    ]  # fmt: skip
    assert pyramid.levels == 5


def test_pyramid_adds_from_the_top_down():
    pyramid = FeaturePyramid((4, 8), dim=16)
    fine, coarse = maps((4, 8), 6, 8)
    p3, p4, p5, p6 = pyramid([fine, coarse])
    top = pyramid.lateral[1](coarse)
    merged = pyramid.lateral[0](fine) + top.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(p3, pyramid.smooth[0](merged))
    torch.testing.assert_close(p4, pyramid.smooth[1](top))
    torch.testing.assert_close(p5, pyramid.coarser[0](p4))
    torch.testing.assert_close(p6, pyramid.coarser[1](F.relu(p5)))


def test_attention_takes_the_place_of_every_3x3():
    pyramid = FeaturePyramid((4, 8, 16), kind="attention")
    for layer in (*pyramid.smooth, *pyramid.coarser):
        assert isinstance(layer, StandAloneAttention)
        assert (layer.window, layer.heads) == (7, 8)
    assert [layer.stride for layer in pyramid.coarser] == [2, 2]
    head = DenseHead(12, kind="attention")
    kernels = [m.kernel_size for m in (*pyramid.modules(), *head.modules()) if hasattr(m, "groups")]
    assert set(kernels) == {(1, 1)}


@both
def test_heads_share_weights_across_levels_but_not_statistics(kind):
    head = DenseHead(6, dim=32, depth=2, levels=3, kind=kind)
    assert len([m for m in head.modules() if isinstance(m, nn.BatchNorm2d)]) == 2 * 3
    levels = maps((32, 32, 32), 8, 8)
    out = head(levels)
    assert [tuple(x.shape) for x in out] == [(2, 6, 8, 8), (2, 6, 4, 4), (2, 6, 2, 2)]
    head.eval()
    before = head(levels)
    head.norm[1][2].bias.data += 1.0
    after = head(levels)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[2], before[2])


@both
def test_init_is_retinanets(kind):
    head = DenseHead(6, kind=kind, prior=0.01)
    last = head.last if kind == "conv" else head.last[1]
    assert torch.allclose(last.bias.sigmoid(), torch.tensor(0.01))
    assert last.weight.std().item() == pytest.approx(0.01, rel=0.1)
    for mix in head.mix:
        weight = mix.weight if kind == "conv" else mix.value.weight
        assert weight.std().item() == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("init", ["retinanet", "xavier"])
@pytest.mark.parametrize("dim", [64, 256])
def test_attention_over_large_maps_does_not_start_with_one_pixel(dim, init):
    pyramid = FeaturePyramid((32, 64, 128), dim, kind="attention", init=init)
    head = DenseHead(6, dim, kind="attention", init=init)
    x = 3 * torch.randn(1, dim, 16, 16)  # as large as merged maps are
    for layer in (*pyramid.smooth, head.mix[0]):
        q, k = (p(x).view(layer.heads, -1, 256) for p in (layer.query, layer.key))
        weights = (q.mT @ k).softmax(2)
        assert weights.amax(2).mean() < 0.2  # of 256; drawn for inputs of unit size, above 0.9


@pytest.mark.parametrize("init", ["retinanet", "xavier"])
@pytest.mark.parametrize("size", [0.01, 100.0])
def test_with_locality_all_attention_begins_beside_its_pixel(size, init):
    pyramid = FeaturePyramid((32, 64, 128), 32, "attention", init=init, norm=True, locality=2.0)
    head = DenseHead(6, 32, kind="attention", init=init, locality=2.0)
    layers = [m for m in (*pyramid.modules(), *head.modules()) if hasattr(m, "locality")]
    assert len(layers) == 5 + 5
    for layer in layers:
        x = size * torch.randn(1, layer.query.in_channels, 12, 12)
        middle = layer.weights(x, at=[(6, 6)])[0, :, 0, 2:5, 2:5]
        assert (middle.amax((1, 2)) > 0.6).all()
        assert (middle.sum((1, 2)) > 0.75).all()


def test_the_levels_of_a_pyramid_may_be_normalised():
    pyramid = FeaturePyramid((8, 16, 32), 16, norm=True)
    for level in pyramid([50 * x for x in maps((8, 16, 32))]):
        assert level.std().item() == pytest.approx(1, abs=0.2)
        assert level.mean().item() == pytest.approx(0, abs=0.1)


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"FeaturePyramid: kind must be one of .* got kind='swin'"):
        FeaturePyramid((4, 8), kind="swin")
    with pytest.raises(ValueError, match="DenseHead: kind must be one of"):
        DenseHead(4, kind="swin")
    with pytest.raises(ValueError, match="built for 2 maps, got 3"):
        FeaturePyramid((4, 8))(maps((4, 8, 16)))
