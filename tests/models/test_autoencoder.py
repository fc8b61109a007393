"""All nine auto-encoders: their layers, any size, and the way to disk and back."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import saccade
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
from saccade.models.autoencoder import DECODERS, ENCODERS, AutoEncoder, down, up

nine = pytest.mark.parametrize(("encoder", "decoder"), list(itertools.product(ENCODERS, DECODERS)))


@nine
def test_five_down_five_up_and_every_weight_learns(encoder, decoder):
    net = AutoEncoder(encoder, decoder, dim=8)
    image = torch.rand(2, 3, 64, 96)
    code = net.encode(image)
    assert code.shape == (2, 64, 2, 3)
    assert (len(net.encoder), len(net.decoder)) == (5, 5)
    again = net(image)
    assert again.shape == image.shape
    (again - image).abs().mean().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None] == []


@nine
@pytest.mark.parametrize("size", [(64, 64), (32, 32), (33, 70)])
def test_any_size(encoder, decoder, size):
    net = AutoEncoder(encoder, decoder, dim=8).eval()
    with torch.no_grad():
        assert net(torch.rand(1, 3, *size)).shape == (1, 3, *size)


def test_what_is_filled_up_repeats_the_border():
    net = AutoEncoder("max", "bilinear", dim=8).eval()
    image = torch.rand(1, 3, 70, 64)
    filled = torch.cat((image, image[:, :, -1:].expand(1, 3, 26, 64)), 2)
    with torch.no_grad():
        assert torch.equal(net(image), net(filled)[:, :, :70])


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_way_down_halves(kind):
    assert down(kind, 8, 16)(torch.randn(2, 8, 6, 10)).shape == (2, 16, 3, 5)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_way_up_doubles(kind):
    assert up(kind, 16, 8)(torch.randn(2, 16, 3, 5)).shape == (2, 8, 6, 10)


def test_the_layers_are_the_supplements():
    def kinds(module):
        return [type(m) for m in module.modules() if not list(m.children())]

    assert kinds(down("conv", 8, 16)) == [nn.Conv2d, nn.InstanceNorm2d, nn.ReLU]
    assert kinds(down("max", 8, 16))[-1] is nn.MaxPool2d
    assert kinds(up("bilinear", 16, 8))[:3] == [nn.Upsample, nn.Conv2d, nn.InstanceNorm2d]
    assert kinds(up("transpose", 16, 8))[:2] == [nn.ConvTranspose2d, nn.InstanceNorm2d]
    below, above = down("qna", 8, 16), up("qna", 16, 8)
    assert isinstance(below.norm, nn.LayerNorm)
    assert isinstance(below.mix, LearnedQueryAttention)
    assert (below.mix.window, below.mix.queries, below.mix.stride) == (3, 1, 2)
    assert isinstance(above.mix, LearnedQueryUpsampling)
    assert (above.mix.window, above.mix.queries) == (3, 4)


@pytest.mark.parametrize("start", ["even", "bilinear"])
def test_what_a_way_up_begins_as(start):
    """Of a map whose pixels answer all queries alike: its mean, or bilinear interpolation."""
    mix = up("qna", 16, 16, start).mix
    with torch.no_grad():
        mix.key.weight.zero_()
        mix.value.weight.copy_(torch.eye(16))
        mix.mix.weight.copy_(torch.eye(16))
        x = torch.randn(1, 16, 5, 6)
        got = mix(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    if start == "even":
        want = F.avg_pool2d(x, 3, 1).repeat_interleave(2, 2).repeat_interleave(2, 3)
        torch.testing.assert_close(got[..., 2:-2, 2:-2], want)
    else:
        want = F.interpolate(x, scale_factor=2, mode="bilinear")[..., 2:-2, 2:-2]
        blur = F.avg_pool2d(x, 3, 1).repeat_interleave(2, 2).repeat_interleave(2, 3)
        torch.testing.assert_close(got[..., 2:-2, 2:-2], (want + blur * 9 / 64) / (1 + 9 / 64))


def test_it_comes_back_from_disk(tmp_path):
    net = AutoEncoder("qna", "transpose", dim=16).eval()
    back = saccade.load(saccade.save(net, tmp_path / "net.safetensors"))
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(back(x), net(x))
    assert back.arguments == net.arguments


def test_wrong_words():
    with pytest.raises(ValueError, match=r"encoder must be one of .*, got 'pool'"):
        AutoEncoder("pool")
    with pytest.raises(ValueError, match=r"decoder must be one of"):
        AutoEncoder(decoder="conv")
    with pytest.raises(ValueError, match=r"start must be one of"):
        AutoEncoder(start="odd")
    with pytest.raises(ValueError, match="multiple of 8"):
        AutoEncoder(dim=12)


def test_it_builds_on_the_meta_device():
    with torch.device("meta"):
        net = AutoEncoder()
        assert net(torch.empty(1, 3, 256, 256)).shape == (1, 3, 256, 256)
