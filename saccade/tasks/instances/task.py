"""Boxes and masks by Mask R-CNN, with torchvision's losses.

objectness, proposals   of the anchors: object or not, and where
classes, boxes          of the sampled proposals
masks                   of those that hold an object: cross-entropy of 28 x 28 pixels
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image

from saccade.models.mask_rcnn import MaskRCNNDetector
from saccade.recipes.instances import MaskRCNN
from saccade.tasks.detect.task import Detect, sizes_of, targets, to_original
from saccade.tasks.task import Metric, Terms

TERMS = {
    "loss_objectness": "objectness", "loss_rpn_box_reg": "proposals",
    "loss_classifier": "classes", "loss_box_reg": "boxes", "loss_mask": "masks",
}  # fmt: skip
LEVEL = "level "  # and a number: the name of a map
PASTED = 10  # masks at once, at the picture's own size in floats
INSIDE = 0.5  # the least share of a mask's pixel that belongs to the object


class Instances(NamedTuple):
    """The objects of one image: x0 y0 x1 y1 in its own pixels, class numbers, shares, masks."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    masks: Tensor
    """n H W, true inside of the object."""


class InstancesTask(Detect):
    """A Mask R-CNN with the losses of its two stages."""

    best = "mask_AP"

    def __init__(
        self,
        net: MaskRCNNDetector,
        classes: Sequence[str],
        settings: MaskRCNN,
        ids: Sequence[int] | None = None,
    ):
        super().__init__(net, classes, ids)
        self.score, self.overlap, self.most = settings.score, settings.overlap, settings.most
        net.heads.nms_thresh, net.heads.detections_per_img = self.overlap, self.most

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Tensor | None = None
    ) -> dict[str, Tensor]:
        maps = {f"{LEVEL}{i}": x for i, x in enumerate(self.net(image))}
        return {**maps, "size": sizes_of(image, size)}

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        raise ValueError(
            "export: the heads of Mask R-CNN look at proposals, whose number differs from image to "
            "image, which an exported graph of fixed outputs cannot; export a RetinaNet instead"
        )

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        maps, images = self._maps_and_sizes(output)
        device = maps[0].device
        masks = [mask.to(device) for mask in target["masks"]]
        truth = [
            {"boxes": boxes, "labels": labels.long() + 1, "masks": mask}  # 0 is the background
            for (boxes, labels), mask in zip(targets(target, device), masks, strict=True)
        ]
        net: Any = self.net
        features = net.maps_by_name(maps)
        proposals, first = net.proposals(images, features, truth)
        _, second = net.heads(features, proposals, images.image_sizes, truth)
        return {TERMS[name]: value for name, value in {**first, **second}.items()}

    @torch.no_grad()
    def predict(
        self,
        output: dict[str, Tensor],
        sizes: Sequence[tuple[int, int]] | None = None,
        score: float | None = None,
    ) -> list[Instances]:
        maps, images = self._maps_and_sizes(output)
        own = images.image_sizes
        originals = own if sizes is None else [(int(H), int(W)) for H, W in sizes]
        net: Any = self.net
        net.heads.score_thresh = self.score if score is None else score
        features = net.maps_by_name(maps)
        proposals, _ = net.proposals(images, features)
        answers, _ = net.heads(features, proposals, own)
        return [
            _instances(answer, *both) for answer, *both in zip(answers, own, originals, strict=True)
        ]

    def metric(self) -> Metric:
        from saccade.tasks.instances.mask_precision import MaskPrecision

        return MaskPrecision(self.classes, self.ids, self.predict)

    def _maps_and_sizes(self, output: dict[str, Tensor]) -> tuple[list[Tensor], ImageList]:
        """The pyramid's maps, and the images as far as torchvision's parts ask about them."""
        maps = [x.float() for name, x in output.items() if name.startswith(LEVEL)]
        sizes = [(int(H), int(W)) for H, W in output["size"].tolist()]
        return maps, ImageList(maps[0], sizes)


def _instances(
    answer: dict[str, Tensor], size: tuple[int, int], original: tuple[int, int]
) -> Instances:
    """Of one image, in pixels of the picture that it was resized from."""
    boxes = to_original(answer["boxes"], size, original)
    parts = [
        paste_masks_in_image(shares, corners, original)[:, 0] >= INSIDE
        for shares, corners in zip(answer["masks"].split(PASTED), boxes.split(PASTED), strict=True)
        if len(corners)
    ]
    empty = torch.zeros((0, *original), dtype=torch.bool, device=boxes.device)
    masks = torch.cat(parts) if parts else empty
    return Instances(boxes, answer["labels"] - 1, answer["scores"], masks)
