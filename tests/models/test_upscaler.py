"""Networks that give pictures more pixels: what they begin as, any size, and the way to disk."""

import itertools

import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

import saccade
from saccade.models.upscaler import BODIES, FACTORS, WAYS_UP, Upscaler, smaller

every_kind = pytest.mark.parametrize(("body", "up"), list(itertools.product(BODIES, WAYS_UP)))


@every_kind
@pytest.mark.parametrize("factor", FACTORS)
def test_begins_as_bicubic_interpolation(body, up, factor):
    net = Upscaler(factor, body, up, dim=8, depth=1).eval()
    image = torch.rand(2, 3, 9, 14)
    with torch.no_grad():
        y = net(image)
    torch.testing.assert_close(y, F.interpolate(image, (9 * factor, 14 * factor), mode="bicubic"))


@every_kind
def test_every_weight_learns(body, up):
    net = Upscaler(2, body, up, dim=8, depth=2)
    torch.nn.init.normal_(net.colour.weight)  # it begins at zero, and nothing learns through that
    (net(torch.rand(2, 3, 12, 10)) ** 2).mean().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


@every_kind
def test_a_saved_network_is_the_same_network(body, up, tmp_path):
    net = Upscaler(3, body, up, dim=8, depth=1).eval()
    torch.nn.init.normal_(net.colour.weight)
    again = saccade.load(saccade.save(net, tmp_path / "net.safetensors")).eval()
    image = torch.rand(1, 3, 7, 9)
    with torch.no_grad():
        assert torch.equal(again(image), net(image))


def test_a_smaller_copy_is_pillows():
    """Bicubic over all pixels that one stands for, in 8 bits: what benchmarks' copies are."""
    image = torch.rand(3, 48, 72).mul(99).add(78).round().to(torch.uint8)
    for factor in FACTORS:
        small = to_pil_image(image).resize((72 // factor, 48 // factor), Image.Resampling.BICUBIC)
        ours = smaller(image[None] / 255, factor)[0] * 255
        assert (ours - pil_to_tensor(small)).abs().max() <= 1
        assert (ours - pil_to_tensor(small)).abs().mean() < 0.2


def test_a_remainder_is_left_out():
    image = torch.rand(1, 3, 50, 67)
    assert torch.equal(smaller(image, 4), smaller(image[:, :, :48, :64], 4))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"factor": 5}, r"factor must be one of \(2, 3, 4\), got 5"),
        ({"body": "vit"}, "body must be one of"),
        ({"up": "nearest"}, "up must be one of"),
        ({"dim": 12}, "a multiple of 8, got dim=12"),
    ],
)
def test_what_does_not_exist_is_refused(wrong, says):
    with pytest.raises(ValueError, match=f"Upscaler: .*{says}"):
        Upscaler(**wrong)
