"""Super-resolution: L1 loss on colours, PSNR and SSIM of the brightness, as is usual.

    low  = the image, bicubic, a pixel for each factor x factor, in 8 bits
    y    = net(low)                                 trained by mean |y - image|
    PSNR = 10 log10(1 / mean squared error of Y),   Y = (65.481 R + 128.553 G + 24.966 B + 16) / 255

Y is what a television calls luma, of colours in 0..1 that were rounded to 8 bits first; `factor`
pixels of every border do not count. SSIM is the auto-encoder's, of Y. Both are means over images,
and both are also counted for bicubic interpolation.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from saccade.models.upscaler import smaller
from saccade.tasks.fidelity import GAP, WINDOW, FidelityMetric, as_bytes, psnr, ssim
from saccade.tasks.task import Task, Terms

LUMA = (65.481 / 255, 128.553 / 255, 24.966 / 255)
SIDE, ZOOM = 64, 3  # of the cut-outs to look at: pixels, and how large each is drawn


class UpscaleTask(Task):
    """A network that restores a picture from a smaller copy of it."""

    best = "psnr"

    def __init__(self, net: Any):
        super().__init__()
        self.net = net
        self.factor: int = net.factor
        self.classes: tuple[str, ...] = ()

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        low = smaller(image, self.factor)
        return {"upscaled": self.net(low), "low": low, "high": self._whole(image)}

    def _whole(self, image: Tensor) -> Tensor:
        """The image without the last rows and columns, which the smaller copy does not cover."""
        H, W = (side - side % self.factor for side in image.shape[2:])
        return image[:, :, :H, :W]

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """The enlarged picture itself; no smaller copy is made."""
        return {"upscaled": self.net(image)}

    def infer(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        """The enlarged picture itself, as `raw` gives it."""
        return self.raw(image)

    def through_graph(
        self, graph: Callable[[Tensor], dict[str, Tensor]], image: Tensor
    ) -> dict[str, Tensor]:
        low = smaller(image, self.factor)
        return {**graph(low), "low": low, "high": self._whole(image)}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        return {"l1": (output["upscaled"].float() - output["high"]).abs().mean()}

    def predict(self, output: dict[str, Tensor], sizes: list[tuple[int, int]]) -> list[Tensor]:
        """Pictures in 0..1."""
        return list(output["upscaled"].float().clamp(0, 1))

    def metric(self) -> "LumaFidelity":
        return LumaFidelity(self.factor)


class LumaFidelity(FidelityMetric):
    """PSNR and SSIM of Y, the network's and bicubic interpolation's, and a few cut-outs."""

    figures = ("psnr", "ssim", "bicubic_psnr", "bicubic_ssim")
    most = 4
    title = "upscaled"
    caption = "What the network saw, bicubic interpolation, the network, and the truth"

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        high, low, ours = (output[name].float() for name in ("high", "low", "upscaled"))
        least = WINDOW + 2 * self.factor
        if min(high.shape[2:]) < least:
            raise ValueError(
                f"evaluation: pictures must have {least} pixels a side or more, "
                f"got {tuple(high.shape[2:])}; leave out the small ones"
            )
        plain = bicubic(low, self.factor)
        truth, y, y_plain = (luma(image, self.factor) for image in (high, ours, plain))
        values = {
            "psnr": psnr(truth, y),
            "ssim": ssim(truth, y),
            "bicubic_psnr": psnr(truth, y_plain),
            "bicubic_ssim": ssim(truth, y_plain),
        }
        columns = (F.interpolate(low, high.shape[2:], mode="nearest"), plain, ours, high)
        first = zip(*(column[: self.most] for column in columns), strict=True)
        self.count(values, [torch.cat([_centre(cut) for cut in row], 1) for row in first])

    def sheet(self, pictures: list[Tensor]) -> Tensor:
        """One above the other."""
        return torch.cat(pictures)


def bicubic(image: Float[Tensor, "B C H W"], factor: int) -> Float[Tensor, "B C Hs Ws"]:
    """The interpolation that the field compares with: Keys' a = -1/2, as MATLAB and Pillow have it.

    PyTorch has it by the word `antialias` (which changes nothing else where pixels are added). Its
    other one, with a = -3/4, is what our networks begin as: 0.15 to 0.2 dB better on photographs.
    """
    size = [factor * side for side in image.shape[2:]]
    return F.interpolate(image, size, mode="bicubic", antialias=True)


def luma(image: Float[Tensor, "B 3 H W"], border: int) -> Float[Tensor, "B 1 h w"]:
    """Y of an image in 8 bits, without its border."""
    image = image.clamp(0, 1).mul(255).round().div(255)
    image = image[:, :, border : image.shape[2] - border, border : image.shape[3] - border]
    weights = image.new_tensor(LUMA)[:, None, None]
    return (image * weights).sum(1, keepdim=True) + 16 / 255


def _centre(image: Float[Tensor, "3 H W"]) -> Tensor:
    """The middle of an image as bytes, with enlarged pixels and a margin."""
    _, H, W = image.shape
    h, w = min(H, SIDE), min(W, SIDE)
    cut = as_bytes(image[:, (H - h) // 2 :, (W - w) // 2 :][:, :h, :w])
    cut = F.pad(cut, (0, 0, 0, SIDE - w, 0, SIDE - h), value=255)
    cut = cut.repeat_interleave(ZOOM, 0).repeat_interleave(ZOOM, 1)
    return F.pad(cut, (0, 0, 0, GAP, 0, GAP), value=255)
