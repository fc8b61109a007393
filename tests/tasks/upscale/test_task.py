"""Figures as the field counts them, against plain numpy."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.models.upscaler import Upscaler
from saccade.tasks.fidelity import ssim
from saccade.tasks.upscale.task import UpscaleTask, luma


def task(factor=2):
    net = Upscaler(factor, "conv", "shuffle", dim=8, depth=1)
    torch.nn.init.normal_(net.colour.weight, std=0.01)
    return UpscaleTask(net).eval()


@pytest.fixture
def image():
    chance = torch.Generator().manual_seed(0)
    small = torch.rand(3, 3, 8, 9, generator=chance)
    return torch.nn.functional.interpolate(small, (41, 46), mode="bicubic").clamp(0, 1)


def plain_luma(image):
    """Of an H W 3 image in 8 bits, as MATLAB's rgb2ycbcr has it, in 0..255."""
    return 16 + image @ np.array([65.481, 128.553, 24.966]) / 255


@pytest.mark.parametrize("factor", [2, 4])
def test_psnr_and_ssim_are_counted_on_brightness(image, factor):
    trained = task(factor)
    with torch.no_grad():
        output = trained(image)
    metric = trained.metric()
    metric.update(output, {})
    figures = metric.compute()
    psnrs = []
    for y, truth in zip(output["upscaled"], image, strict=True):
        y, truth = (t.clamp(0, 1).mul(255).round().permute(1, 2, 0).numpy() for t in (y, truth))
        H, W = (side // factor * factor for side in truth.shape[:2])
        assert y.shape[:2] == (H, W)
        inner = np.s_[factor : H - factor, factor : W - factor]
        error = (plain_luma(y) - plain_luma(truth[:H, :W]))[inner] ** 2
        psnrs.append(10 * np.log10(255**2 / error.mean()))
    assert figures["psnr"] == pytest.approx(np.mean(psnrs), abs=1e-4)
    y, truth = (luma(output[name], factor) for name in ("upscaled", "high"))
    assert figures["ssim"] == pytest.approx(float(ssim(y, truth).mean()))
    assert figures["images"] == 3


@pytest.mark.parametrize("factor", [2, 4])
def test_bicubic_is_the_fields(factor):
    """Pillow's filter, on the same small copy: PyTorch's own is sharper, and another figure."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    picture = Image.fromarray(noise).resize((96, 96), Image.Resampling.NEAREST)
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 255
    fresh = UpscaleTask(Upscaler(factor, "conv", "shuffle", dim=8, depth=1)).eval()
    metric = fresh.metric()
    with torch.no_grad():
        output = fresh(image)
    metric.update(output, {})
    figures = metric.compute()
    low = output["low"][0].permute(1, 2, 0).mul(255).round().byte().numpy()
    large = np.array(Image.fromarray(low).resize((96, 96), Image.Resampling.BICUBIC), float)
    error = (plain_luma(large) - plain_luma(np.array(picture, float)))[
        factor:-factor, factor:-factor
    ]
    plain = 10 * np.log10(255**2 / (error**2).mean())
    assert figures["bicubic_psnr"] == pytest.approx(plain, abs=0.02)
    assert abs(figures["psnr"] - plain) > 0.1  # a network that has learned nothing


def test_shares_of_processes_add_up(image):
    trained = task()
    whole, first, second = (trained.metric() for _ in range(3))
    with torch.no_grad():
        whole.update(trained(image), {})
        first.update(trained(image[:1]), {})
        second.update(trained(image[1:]), {})
    first.add(second.state())
    assert first.compute() == pytest.approx(whole.compute(), rel=1e-5)
    sheet = first.tables()["pictures"]["upscaled"]
    drawn = Image.open(io.BytesIO(base64.b64decode(sheet["png"])))
    assert drawn.width > drawn.height  # four columns, three rows


def test_the_loss_is_the_distance_to_the_picture_itself(image):
    trained = task()
    with torch.no_grad():
        output = trained(image)
        expected = (trained.net(output["low"]) - image[:, :, :40, :46]).abs().mean()
    assert output["low"].shape[2:] == (20, 23)
    assert float(trained.loss(output, {})["l1"]) == pytest.approx(float(expected))


def test_a_picture_too_small_to_judge_is_refused():
    trained = task(4)
    with torch.no_grad(), pytest.raises(ValueError, match="19 pixels a side or more"):
        trained.metric().update(trained(torch.rand(1, 3, 16, 40)), {})
