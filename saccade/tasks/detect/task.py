"""What tasks that find boxes have in common: what they find, and how it is judged."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.models.detector import DenseNetwork
from saccade.tasks.task import Metric, Task


class Detections(NamedTuple):
    """The boxes found on one image: x0 y0 x1 y1 in its own pixels, class numbers, and shares."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor


class Detect(Task):
    """A detector, the names of its classes, and the ids that an annotation file gives them."""

    best = "AP"

    def __init__(self, net: DenseNetwork, classes: Sequence[str], ids: Sequence[int] | None = None):
        super().__init__()
        if len(classes) != net.num_classes:
            raise ValueError(
                f"{type(self).__name__}: the network knows {net.num_classes} classes, "
                f"got {len(classes)} names"
            )
        self.net = net
        self.classes = tuple(classes)
        self.ids = list(ids) if ids is not None else list(range(1, len(self.classes) + 1))

    @abstractmethod
    def predict(
        self,
        output: dict[str, Tensor],
        sizes: Sequence[tuple[int, int]] | None = None,
        score: float | None = None,
    ) -> list[Any]:
        """The boxes of each image with the highest scores, in pixels of the pictures.

        Args:
            output: what the task gave for a batch
            sizes: heights and widths of the pictures; those of the batch if None
            score: leave out boxes below it; the recipe's if None
        """

    def decoding(self) -> dict[str, Any]:
        return {"ids": self.ids}

    def metric(self) -> Metric:
        from saccade.tasks.detect.average_precision import AveragePrecision

        return AveragePrecision(self.classes, self.ids, self.predict)


def sizes_of(image: Float[Tensor, "B C H W"], size: Tensor | None) -> Int[Tensor, "B 2"]:
    """Height and width of each image inside a padded batch; the batch's own if `size` is None."""
    if size is not None:
        return size
    whole = torch.tensor(image.shape[2:], dtype=torch.int64)
    return whole.expand(len(image), 2).to(image.device)


def targets(target: dict[str, Any], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Boxes and labels image by image."""
    return [
        (boxes.to(device, torch.float32).reshape(-1, 4), labels.to(device))
        for boxes, labels in zip(target["boxes"], target["labels"], strict=True)
    ]


def to_original(
    boxes: Float[Tensor, "m 4"], size: Sequence[float], original: Sequence[float]
) -> Float[Tensor, "m 4"]:
    """Boxes on an image of `size` (height, width), on the picture it was resized from."""
    y, x = (float(o) / float(s) for o, s in zip(original, size, strict=True))
    return boxes * boxes.new_tensor((x, y, x, y))
