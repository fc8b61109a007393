"""Figures over images, shares of processes, and the picture."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from saccade.tasks.autoencode.task import AutoEncodeTask, Fidelity


def pair(seed=0, B=2, H=24, W=31):
    chance = np.random.default_rng(seed)
    a = chance.random((B, 3, H, W))
    b = (a + 0.2 * chance.normal(size=a.shape)).clip(0, 1)
    return a, b


def metric_of(a, b):
    metric = Fidelity()
    metric.update({"input": torch.tensor(a).float(), "reconstruction": torch.tensor(b).float()}, {})
    return metric


def test_figures_are_means_over_images_and_processes_add_up():
    a, b = pair(B=5)
    whole, sum_ = metric_of(a, b).compute(), Fidelity()
    for part in (slice(0, 2), slice(2, 5)):
        sum_.add(metric_of(a[part], b[part]).state())
    assert sum_.compute() == pytest.approx(whole)
    assert list(whole) == ["psnr", "ssim", "l1", "images"]
    assert whole["l1"] == pytest.approx(np.abs(a - b).mean(), rel=1e-5)
    assert whole["images"] == 5
    with pytest.raises(ValueError, match="no image was read"):
        Fidelity().compute()


def test_what_leaves_the_range_counts_as_its_end():
    a = np.ones((1, 3, 16, 16))
    assert metric_of(a, 3 * a).compute()["psnr"] == pytest.approx(100)


def test_images_stand_above_what_came_back():
    metric = Fidelity()
    for seed in range(4):
        a, b = pair(seed, B=3, H=16, W=20)
        metric.update(
            {"input": torch.tensor(a).float(), "reconstruction": torch.tensor(b).float()}, {}
        )
    letters = metric.tables()["pictures"]["reconstruction"]["png"]
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(letters))))
    assert sheet.shape == (32, 8 * 20 + 7 * 6, 3)
    first, _ = pair(0, B=3, H=16, W=20)
    assert np.abs(sheet[:16, :20] / 255 - first[0].transpose(1, 2, 0)).max() < 0.003
    assert Fidelity().tables() == {}


def test_the_loss_is_l1():
    class Darker(nn.Module):
        def forward(self, image):
            return image - 0.25

    task = AutoEncodeTask(Darker())
    output = task(torch.rand(2, 3, 8, 8))
    assert float(task.loss(output, {})["l1"]) == pytest.approx(0.25)
    assert [tuple(p.shape) for p in task.predict(output, [])] == [(3, 8, 8)] * 2
    assert isinstance(task.metric(), Fidelity)
