"""Image quality against a reference: PSNR, SSIM, and pictures to look at.

    PSNR = 10 log10(1 / mean squared error)                                      pixels in 0..1
    SSIM = mean of (2 m m' + C1)(2 c + C2) / ((m^2 + m'^2 + C1)(v + v' + C2))

m, v, c are means, variances and the covariance under an 11 x 11 Gaussian (sigma 1.5) that lies
within the image, C1 = 0.01^2, C2 = 0.03^2; each colour by itself, then their mean.
"""

import base64
import io
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from saccade.tasks.task import Metric

GAP = 6  # pixels between pictures
WINDOW, SIGMA, C1, C2 = 11, 1.5, 0.01**2, 0.03**2


class FidelityMetric(Metric):
    """Means over images, and the first few images drawn onto one sheet."""

    figures: ClassVar[tuple[str, ...]]
    """What is averaged."""
    most: ClassVar[int]
    """How many images are drawn."""
    title: ClassVar[str]
    caption: ClassVar[str]

    def __init__(self) -> None:
        self.sums = dict.fromkeys(self.figures, 0.0)
        self.images = 0
        self.pictures: list[Tensor] = []
        """H W 3, as bytes."""

    def count(self, values: Mapping[str, Float[Tensor, "B"]], pictures: Sequence[Tensor]) -> None:
        """Add a batch's figures; pictures beyond the first few are dropped."""
        for name, each in values.items():
            self.sums[name] += float(each.double().sum())
        self.images += len(each)
        self.pictures += [p.cpu() for p in pictures[: self.most - len(self.pictures)]]

    def state(self) -> dict[str, Any]:
        return {"sums": self.sums, "images": self.images, "pictures": self.pictures}

    def add(self, state: dict[str, Any]) -> None:
        for name, value in state["sums"].items():
            self.sums[name] += value
        self.images += state["images"]
        self.pictures = [*self.pictures, *state["pictures"]][: self.most]

    def compute(self) -> dict[str, float]:
        if not self.images:
            raise ValueError("evaluation: no image was read; check the validation set")
        means = {name: value / self.images for name, value in self.sums.items()}
        return {**means, "images": self.images}

    def tables(self) -> dict[str, Any]:
        if not self.pictures:
            return {}
        stream = io.BytesIO()
        Image.fromarray(self.sheet(self.pictures).numpy()).save(stream, "PNG")
        png = base64.b64encode(stream.getvalue()).decode()
        return {"pictures": {self.title: {"png": png, "caption": self.caption}}}

    @abstractmethod
    def sheet(self, pictures: list[Tensor]) -> Tensor:
        """The pictures beside or above each other."""


def as_bytes(image: Float[Tensor, "C H W"]) -> Tensor:
    """H W C of an image in 0..1."""
    return image.clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0)


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
