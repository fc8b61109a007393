"""PSNR and SSIM against plain numpy."""

import numpy as np
import pytest
import torch

from saccade.tasks.fidelity import psnr, ssim


def pair():
    chance = np.random.default_rng(0)
    a = chance.random((2, 3, 24, 31))
    return a, (a + 0.2 * chance.normal(size=a.shape)).clip(0, 1)


def plain_ssim(a, b):
    """Window by window, in loops."""
    at = np.arange(11) - 5
    g = np.exp(-(at**2) / (2 * 1.5**2))
    w = np.outer(g, g) / np.outer(g, g).sum()
    values = []
    for colour in range(a.shape[0]):
        for y in range(a.shape[1] - 10):
            for x in range(a.shape[2] - 10):
                p, q = (z[colour, y : y + 11, x : x + 11] for z in (a, b))
                mp, mq = (w * p).sum(), (w * q).sum()
                vp, vq = (w * (p - mp) ** 2).sum(), (w * (q - mq) ** 2).sum()
                c = (w * (p - mp) * (q - mq)).sum()
                top = (2 * mp * mq + 0.01**2) * (2 * c + 0.03**2)
                values.append(top / ((mp**2 + mq**2 + 0.01**2) * (vp + vq + 0.03**2)))
    return np.mean(values)


def test_ssim_is_the_definition():
    a, b = pair()
    value = ssim(torch.tensor(a), torch.tensor(b))
    assert value.tolist() == pytest.approx([plain_ssim(*p) for p in zip(a, b, strict=True)])
    assert ssim(torch.tensor(a), torch.tensor(a)).tolist() == pytest.approx([1, 1])
    with pytest.raises(ValueError, match="11 x 11 pixels or more"):
        ssim(torch.rand(1, 3, 10, 20), torch.rand(1, 3, 10, 20))


def test_psnr_is_the_definition():
    a, b = pair()
    expected = [10 * np.log10(1 / np.mean((x - y) ** 2)) for x, y in zip(a, b, strict=True)]
    assert psnr(torch.tensor(a), torch.tensor(b)).tolist() == pytest.approx(expected)
    assert float(psnr(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 4, 4))) == pytest.approx(100)
