"""Test-time augmentation of detection: boxes of several views, after non-maximum suppression."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.ops import batched_nms

from saccade.tasks.detect.task import Detect, Detections, sizes_of
from saccade.tasks.task import Terms
from saccade.tasks.views import refuse_training, views

MIRRORED = "mirrored"  # beside a view's outputs
OVERLAP, MOST = 0.5, 100  # where the task says nothing of its own


class DetectViews(Detect):
    """A trained task that looks at every image several times."""

    def __init__(self, task: Any):
        super().__init__(task.net, task.classes, task.ids)
        self.task = task
        self.overlap: float = getattr(task, "overlap", OVERLAP)
        self.most: int = getattr(task, "most", MOST)

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The outputs of each view, by its number and their names, of images without padding."""
        own = sizes_of(image, size)
        if (own != own.new_tensor(image.shape[2:])).any():
            raise ValueError(
                f"DetectViews: images are mirrored whole, without padding, got sizes "
                f"{own.tolist()} in {tuple(image.shape[2:])}; show images of one size together"
            )
        output = {"size": own}
        for i, (view, mirrored) in enumerate(views(image)):
            one = {**self.task(view), MIRRORED: torch.tensor(mirrored)}
            output |= {f"{i}/{name}": value for name, value in one.items()}
        return output

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        raise refuse_training("DetectViews")

    @torch.no_grad()
    def predict(
        self,
        output: dict[str, Tensor],
        sizes: Sequence[tuple[int, int]] | None = None,
        score: float | None = None,
    ) -> list[Detections]:
        originals = [(int(H), int(W)) for H, W in (output["size"] if sizes is None else sizes)]
        views: dict[str, dict[str, Tensor]] = {}
        for name, value in output.items():
            view, slash, word = name.partition("/")
            if slash:
                views.setdefault(view, {})[word] = value
        answers = [
            [_mirrored(boxes, W) if one[MIRRORED] else boxes
             for boxes, (_, W) in zip(self.task.predict(one, originals, score), originals,
                                      strict=True)]
            for one in views.values()
        ]  # fmt: skip
        return [self._together(image) for image in zip(*answers, strict=True)]

    def _together(self, image: Sequence[Detections]) -> Detections:
        """Of one image, the surest of boxes that overlap."""
        boxes, labels, scores = (torch.cat(part) for part in zip(*image, strict=True))
        best = batched_nms(boxes, scores, labels, self.overlap)[: self.most]
        return Detections(boxes[best], labels[best], scores[best])


def _mirrored(detections: Detections, width: int) -> Detections:
    boxes = detections.boxes
    x0, y0, x1, y1 = boxes.unbind(1)
    return detections._replace(boxes=torch.stack((width - x1, y0, width - x0, y1), 1))
