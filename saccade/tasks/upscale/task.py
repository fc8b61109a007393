"""Super-resolution: L1 loss on colours, judged on brightness as the field does.

    low  = the image, bicubic, a pixel for each factor x factor, in 8 bits
    y    = net(low)                                 trained by mean |y - image|
    PSNR = 10 log10(1 / mean squared error of Y),   Y = (65.481 R + 128.553 G + 24.966 B + 16) / 255

Y is what a television calls luma, of colours in 0..1 that were rounded to 8 bits first; `factor`
pixels of every border do not count. SSIM is the auto-encoder's, of Y. Both are means over images,
and the same is told of bicubic interpolation.
"""

import base64
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor

from saccade.models.upscaler import bicubic, smaller
from saccade.tasks.autoencode.task import WINDOW, psnr, ssim
from saccade.tasks.task import Metric, Task, Terms

LUMA = (65.481 / 255, 128.553 / 255, 24.966 / 255)
ROWS, SIDE, ZOOM, GAP = 4, 64, 3, 6  # pictures to look at, their cut-out's side, how large, between


class UpscaleTask(Task):
    """A network that gives back the picture of which it saw a smaller copy."""

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
        """Without the last rows and columns of which the smaller copy knows nothing."""
        H, W = (side - side % self.factor for side in image.shape[2:])
        return image[:, :, :H, :W]

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Of the picture that there is, not of a copy of it."""
        return {"upscaled": self.net(image)}

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


class LumaFidelity(Metric):
    """PSNR and SSIM of Y, the network's and bicubic interpolation's, and a few cut-outs."""

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.sums = dict.fromkeys(("psnr", "ssim", "bicubic_psnr", "bicubic_ssim"), 0.0)
        self.images = 0
        self.rows: list[Tensor] = []
        """Small copy, bicubic, network and truth side by side, as bytes."""

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        high, low = output["high"].float(), output["low"].float()
        least = WINDOW + 2 * self.factor
        if min(high.shape[2:]) < least:
            raise ValueError(
                f"evaluation: pictures must have {least} pixels a side or more, "
                f"got {tuple(high.shape[2:])}; leave out the small ones"
            )
        plain = bicubic(low, self.factor)
        truth = luma(high, self.factor)
        for prefix, image in (("", output["upscaled"].float()), ("bicubic_", plain)):
            y = luma(image, self.factor)
            self.sums[f"{prefix}psnr"] += float(psnr(truth, y).sum())
            self.sums[f"{prefix}ssim"] += float(ssim(truth, y).sum())
        self.images += len(high)
        columns = (
            F.interpolate(low, high.shape[2:], mode="nearest"),
            plain,
            output["upscaled"],
            high,
        )
        for i in range(min(len(high), ROWS - len(self.rows))):
            cuts = [_centre(column[i].float()) for column in columns]
            self.rows.append(torch.cat(cuts, 1))

    def state(self) -> dict[str, Any]:
        return {"sums": self.sums, "images": self.images, "rows": self.rows}

    def add(self, state: dict[str, Any]) -> None:
        for name, value in state["sums"].items():
            self.sums[name] += value
        self.images += state["images"]
        self.rows = [*self.rows, *state["rows"]][:ROWS]

    def compute(self) -> dict[str, float]:
        if not self.images:
            raise ValueError("evaluation: no image was read; check the validation set")
        means = {name: value / self.images for name, value in self.sums.items()}
        return {**means, "images": self.images}

    def tables(self) -> dict[str, Any]:
        if not self.rows:
            return {}
        caption = "What the network saw, bicubic interpolation, the network, and the truth"
        return {"pictures": {"upscaled": {"png": _sheet(self.rows), "caption": caption}}}


def luma(image: Float[Tensor, "B 3 H W"], border: int) -> Float[Tensor, "B 1 h w"]:
    """Y of an image in 8 bits, without its border."""
    image = image.clamp(0, 1).mul(255).round().div(255)
    image = image[:, :, border : image.shape[2] - border, border : image.shape[3] - border]
    weights = image.new_tensor(LUMA)[:, None, None]
    return (image * weights).sum(1, keepdim=True) + 16 / 255


def _centre(image: Float[Tensor, "3 H W"]) -> Tensor:
    """The middle of an image as bytes, enlarged so that pixels are seen, with room at its right."""
    _, H, W = image.shape
    h, w = min(H, SIDE), min(W, SIDE)
    cut = image[:, (H - h) // 2 :, (W - w) // 2 :][:, :h, :w]
    cut = cut.clamp(0, 1).mul(255).round().to(torch.uint8)
    cut = F.pad(cut, (0, SIDE - w, 0, SIDE - h), value=255)
    cut = cut.repeat_interleave(ZOOM, 1).repeat_interleave(ZOOM, 2)
    return F.pad(cut, (0, GAP, 0, GAP), value=255).permute(1, 2, 0).cpu()


def _sheet(rows: list[Tensor]) -> str:
    """Rows of cut-outs as a PNG in base64."""
    stream = io.BytesIO()
    Image.fromarray(torch.cat(rows).numpy()).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
