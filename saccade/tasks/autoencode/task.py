"""The image itself, through a narrow middle: L1 loss, judged by PSNR and SSIM.

    PSNR = 10 log10(1 / mean squared error)                                      pixels in 0..1
    SSIM = mean of (2 m m' + C1)(2 c + C2) / ((m^2 + m'^2 + C1)(v + v' + C2))

m, v, c are means, variances and the covariance under an 11 x 11 Gaussian (sigma 1.5) that lies
within the image, C1 = 0.01^2, C2 = 0.03^2; each colour by itself, then their mean. Figures are
means over images, of reconstructions held to 0..1.
"""

import base64
import io
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor, nn

from saccade.tasks.task import Metric, Task, Terms

PAIRS = 8  # images kept to look at
GAP = 6  # pixels between them
WINDOW, SIGMA, C1, C2 = 11, 1.5, 0.01**2, 0.03**2


class AutoEncodeTask(Task):
    """An auto-encoder with L1 loss."""

    best = "psnr"

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net
        self.classes: tuple[str, ...] = ()

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        return {"reconstruction": self.net(image), "input": image}

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        return {"reconstruction": self.net(image)}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        return {"l1": (output["reconstruction"].float() - output["input"]).abs().mean()}

    def predict(self, output: dict[str, Tensor], sizes: list[tuple[int, int]]) -> list[Tensor]:
        """Reconstructions in 0..1."""
        return list(output["reconstruction"].float().clamp(0, 1))

    def metric(self) -> "Fidelity":
        return Fidelity()


class Fidelity(Metric):
    """PSNR, SSIM and L1 as means over images, and a few images side by side."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(("psnr", "ssim", "l1"), 0.0)
        self.images = 0
        self.pairs: list[Tensor] = []
        """Image and reconstruction, one above the other, as bytes."""

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        image = output["input"].float()
        again = output["reconstruction"].float().clamp(0, 1)
        for name, each in (
            ("psnr", psnr(image, again)),
            ("ssim", ssim(image, again)),
            ("l1", (image - again).abs().mean((1, 2, 3))),
        ):
            self.sums[name] += float(each.double().sum())
        self.images += len(image)
        for pair in zip(image[: PAIRS - len(self.pairs)], again, strict=False):
            both = torch.cat(pair, 1).mul(255).round().to(torch.uint8)
            self.pairs.append(both.permute(1, 2, 0).cpu())

    def state(self) -> dict[str, Any]:
        return {"sums": self.sums, "images": self.images, "pairs": self.pairs}

    def add(self, state: dict[str, Any]) -> None:
        for name, value in state["sums"].items():
            self.sums[name] += value
        self.images += state["images"]
        self.pairs = [*self.pairs, *state["pairs"]][:PAIRS]

    def compute(self) -> dict[str, float]:
        if not self.images:
            raise ValueError("evaluation: no image was read; check the validation set")
        means = {name: value / self.images for name, value in self.sums.items()}
        return {**means, "images": self.images}

    def tables(self) -> dict[str, Any]:
        if not self.pairs:
            return {}
        caption = "Images in the upper row, and beneath what came back of them"
        return {"pictures": {"reconstruction": {"png": _sheet(self.pairs), "caption": caption}}}


def psnr(a: Float[Tensor, "B C H W"], b: Float[Tensor, "B C H W"]) -> Float[Tensor, "B"]:
    """The peak signal-to-noise ratio in decibels, 100 at most (equal images)."""
    error = (a - b).double().square().mean((1, 2, 3))
    return -10 * error.clamp(min=1e-10).log10()


def ssim(a: Float[Tensor, "B C H W"], b: Float[Tensor, "B C H W"]) -> Float[Tensor, "B"]:
    """The structural similarity, 1 for equal images."""
    if min(a.shape[2:]) < WINDOW:
        raise ValueError(
            f"ssim: takes images of {WINDOW} x {WINDOW} pixels or more, got {tuple(a.shape[2:])}"
        )
    a, b = a.double(), b.double()
    parts = torch.stack((a, b, a * a, b * b, a * b)).flatten(0, 2)[:, None]  # 5BC 1 H W
    at = torch.arange(WINDOW, dtype=a.dtype, device=a.device) - WINDOW // 2
    g = (-(at**2) / (2 * SIGMA**2)).exp()
    g = g / g.sum()
    parts = F.conv2d(F.conv2d(parts, g[None, None, None]), g[None, None, :, None])
    ma, mb, aa, bb, ab = parts.unflatten(0, (5, *a.shape[:2]))[:, :, :, 0]
    va, vb, cov = aa - ma * ma, bb - mb * mb, ab - ma * mb
    maps = (2 * ma * mb + C1) * (2 * cov + C2) / ((ma * ma + mb * mb + C1) * (va + vb + C2))
    return maps.mean((1, 2, 3))


def _sheet(pairs: list[Tensor]) -> str:
    """Pairs side by side as a PNG in base64."""
    height = max(pair.shape[0] for pair in pairs)
    width = sum(pair.shape[1] + GAP for pair in pairs) - GAP
    sheet, x = np.full((height, width, 3), 255, np.uint8), 0
    for pair in pairs:
        h, w = pair.shape[:2]
        sheet[:h, x : x + w] = pair.numpy()
        x += w + GAP
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
