"""Segmentation: cross-entropy of every pixel, and evaluation in windows.

    loss = - sum over labelled pixels of w_class log softmax(logits)[class] / number of pixels

    w_k = (1 / share of class k among the training pixels) ^ balance, such that the mean over these
          pixels is 1 and none is above 10; all are 1 where `balance` is 0

Divided by all pixels, labelled or not, every labelled one weighs the same however a batch is cut
into parts.

Predictions are compared at each image's own size (see `pixels`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from saccade.layers.semantic import STRIDE, raised
from saccade.tasks.segment.overlap import Overlap
from saccade.tasks.segment.pixels import IGNORED, likeliest
from saccade.tasks.task import Task, Terms

MOST = 10.0  # weight of a class, in means
ROUNDS = 20


class SegmentTask(Task):
    """A segmenter with cross-entropy over the pixels that have a label.

    window   evaluate images in windows of this side instead of as a whole
    overlap  least share of a window that the next one covers too
    ids      the number of each class in masks on disk; 0, 1, ... if None
    weights  of each class in the loss; 1 if None
    """

    best = "miou"
    weights: Tensor | None

    def __init__(
        self,
        net: nn.Module,
        classes: Sequence[str],
        window: int | None = None,
        overlap: float = 0.5,
        ids: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
    ):
        super().__init__()
        self.net = net
        self.classes = tuple(classes)
        self.window, self.overlap = window, overlap
        self.ids = list(range(len(self.classes))) if ids is None else list(ids)
        shares = None if weights is None else torch.tensor(weights, dtype=torch.float32)
        self.register_buffer("weights", shares, persistent=False)

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        """Logits of every fourth pixel each way, and the images' sizes without padding.

        Evaluated images go through the network without their padding, so that the result does not
        depend on the other images of the batch.
        """
        H, W = image.shape[2:]
        if size is None:
            size = torch.tensor([[H, W]], device=image.device).expand(len(image), 2)
        if self.training:
            return {"logits": self.net(image, coarse=True), "size": size}
        h, w = -(-H // STRIDE), -(-W // STRIDE)
        logits = image.new_empty(len(image), len(self.classes), h, w)
        for height, width in size.unique(dim=0).tolist():
            alike = ((size[:, 0] == height) & (size[:, 1] == width)).nonzero()[:, 0]
            inner = self.evaluated(image[alike, :, :height, :width])
            beyond = (0, w - inner.shape[3], 0, h - inner.shape[2])
            logits[alike] = F.pad(inner.to(logits.dtype), beyond, mode="replicate")
        return {"logits": logits, "size": size}

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Logits of every fourth pixel each way, of whole images."""
        return {"logits": self.net(image, coarse=True)}

    def decoding(self) -> dict[str, Any]:
        windows = {"window": self.window, "overlap": self.overlap}
        return {"ids": self.ids, "stride": STRIDE, **windows}

    def through_graph(
        self, graph: Callable[[Tensor], dict[str, Tensor]], image: Float[Tensor, "B C H W"]
    ) -> dict[str, Tensor]:
        return {"logits": self.evaluated(image, lambda part: graph(part)["logits"])}

    def evaluated(
        self, image: Float[Tensor, "B C H W"], network: Callable[[Tensor], Tensor] | None = None
    ) -> Float[Tensor, "B K h w"]:
        """Logits of the whole image, or of its windows if it is larger than one."""
        network = network or partial(self.net, coarse=True)
        if self.window is None or max(image.shape[2:]) <= self.window:
            return network(image)
        return self.through_windows(image, self.window, network)

    def through_windows(
        self,
        image: Float[Tensor, "B C H W"],
        window: int,
        network: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "B K h w"]:
        """For each pixel the mean of the logits of all windows that hold it."""
        H, W = image.shape[2:]
        h, w = -(-H // STRIDE), -(-W // STRIDE)
        sums = image.new_zeros(len(image), len(self.classes), h, w)
        windows = image.new_zeros(h, w)  # that see each pixel
        for top in starts(H, window, self.overlap):
            for left in starts(W, window, self.overlap):
                part = image[..., top : top + window, left : left + window]
                logits = network(part)
                y, x = top // STRIDE, left // STRIDE
                at = slice(y, y + logits.shape[2]), slice(x, x + logits.shape[3])
                sums[:, :, *at] += logits
                windows[at] += 1
        return sums / windows

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        return {"cross_entropy": self.cross_entropy(output["logits"], target["mask"])}

    def cross_entropy(
        self, logits: Float[Tensor, "B K h w"], mask: UInt8[Tensor, "B H W"]
    ) -> Float[Tensor, ""]:
        """Of logits at a quarter of the mask's size."""
        logits = raised(logits.float(), STRIDE, mask.shape[1:])
        total = F.cross_entropy(
            logits, mask.long(), self.weights, ignore_index=IGNORED, reduction="sum"
        )
        return total / mask.numel()

    def predict(
        self, output: dict[str, Tensor], sizes: list[tuple[int, int]]
    ) -> list[UInt8[Tensor, "_ _"]]:
        """The likeliest class of each pixel, for images of these heights and widths."""
        return likeliest(output, sizes)

    def metric(self) -> Overlap:
        return Overlap(self.classes)


def balanced(pixels: Sequence[int] | None, power: float) -> list[float] | None:
    """Weights of classes by how many pixels each has, as at the top; None where all are 1."""
    if not power or not pixels or not sum(pixels):
        return None
    shares = torch.tensor(pixels, dtype=torch.float64) / sum(pixels)
    known = shares > 0
    weights = torch.where(known, shares.clamp(min=1e-12) ** -power, 1.0)
    for _ in range(ROUNDS):  # cutting the largest weights lowers the mean, so it is repeated
        weights = weights / (weights * shares).sum()
        weights = weights.clamp(max=MOST)
    return torch.where(known, weights, 1.0).tolist()


def starts(length: int, window: int, overlap: float) -> list[int]:
    """Where windows begin, evenly spaced in whole strides, the last one ending at the border."""
    if length <= window:
        return [0]
    last = -(-(length - window) // STRIDE)  # in strides; its window may end up to 3 pixels early
    step = max(int(window * (1 - overlap)) // STRIDE, 1)
    count = -(-last // step)
    return [last * i // count * STRIDE for i in range(count + 1)]
