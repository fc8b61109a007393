"""An auto-encoder's loss and metric: L1 in training, PSNR and SSIM in evaluation.

Figures are means over images; reconstructions are clamped to 0..1 first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from saccade.tasks.fidelity import GAP, FidelityMetric, as_bytes, psnr, ssim
from saccade.tasks.task import Task, Terms


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


class Fidelity(FidelityMetric):
    """PSNR, SSIM and L1, and images above their reconstructions."""

    figures = ("psnr", "ssim", "l1")
    most = 8
    title = "reconstruction"
    caption = "Images in the upper row, their reconstructions in the lower"

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        image = output["input"].float()
        again = output["reconstruction"].float().clamp(0, 1)
        l1 = (image - again).abs().mean((1, 2, 3))
        values = {"psnr": psnr(image, again), "ssim": ssim(image, again), "l1": l1}
        first = zip(image[: self.most], again, strict=False)
        self.count(values, [as_bytes(torch.cat(pair, 1)) for pair in first])

    def sheet(self, pictures: list[Tensor]) -> Tensor:
        """Side by side."""
        height = max(len(pair) for pair in pictures)
        padded = [F.pad(p, (0, 0, 0, GAP, 0, height - len(p)), value=255) for p in pictures]
        return torch.cat(padded, 1)[:, :-GAP]
