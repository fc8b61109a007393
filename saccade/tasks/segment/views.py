"""Test-time augmentation of segmentation: the mean prediction over several views of an image."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from saccade.layers.semantic import STRIDE
from saccade.tasks.segment.task import SegmentTask
from saccade.tasks.task import Terms
from saccade.tasks.views import refuse_training, views


class SegmentViews(SegmentTask):
    """A trained task that looks at every image several times."""

    def __init__(self, task: Any):
        super().__init__(task.net, task.classes, task.window, task.overlap, task.ids)
        self.task = task

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        """Logits whose softmax is the mean of the views', of images without padding."""
        if size is not None and (size != size.new_tensor(image.shape[2:])).any():
            raise ValueError(
                f"SegmentViews: images are mirrored whole, without padding, got sizes "
                f"{size.tolist()} in {tuple(image.shape[2:])}; show images of one size together"
            )
        total, count, output = None, 0, {}
        for view, mirrored in views(image, STRIDE):
            one = self.task(view)
            output, logits = output or one, one["logits"].float()
            logits = logits.flip(-1) if mirrored else logits
            side = output["logits"].shape[2:]
            if logits.shape[2:] != side:
                logits = F.interpolate(logits, side, mode="bilinear", antialias=True)
            shares = logits.softmax(1)
            total, count = shares if total is None else total + shares, count + 1
        assert total is not None
        return {**output, "logits": (total / count).clamp(min=1e-12).log()}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        raise refuse_training("SegmentViews")
