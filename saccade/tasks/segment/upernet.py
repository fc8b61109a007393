"""UperNet's loss: cross-entropy of its head, and of a further one on an earlier map.

cross_entropy = as for SemanticFPN          auxiliary = share * the same of the further head
"""

from typing import Any, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from saccade.models.upernet import UperNetSegmenter
from saccade.tasks.segment.task import SegmentTask
from saccade.tasks.task import Terms


class UperNetTask(SegmentTask):
    """A UperNet with the losses of both heads."""

    def __init__(self, *arguments: Any, share: float = 0.4, **options: Any):
        super().__init__(*arguments, **options)
        self.share = share

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        """As for SemanticFPN; in training also `auxiliary`, the further head's logits."""
        if not self.training:
            return super().forward(image, size)
        if size is None:
            size = torch.tensor([image.shape[2:]], device=image.device).expand(len(image), 2)
        logits, further = cast(UperNetSegmenter, self.net).with_auxiliary(image)
        output = {"logits": logits, "size": size}
        return output if further is None else {**output, "auxiliary": further}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        terms = super().loss(output, target)
        if "auxiliary" in output:
            terms["auxiliary"] = self.share * self.cross_entropy(
                output["auxiliary"], target["mask"]
            )
        return terms
