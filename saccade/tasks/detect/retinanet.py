"""RetinaNet's losses, and its boxes from logits and offsets.

    classes = sum over anchors of focal loss / positives      each image, then their mean
    boxes   = sum over positives of |offset - encode(box)| / positives

An anchor is positive for a box that it overlaps by 0.5 or more, or better than any other anchor. It
is background if it overlaps every box by less than 0.4, and ignored between the two. The loss is
averaged image by image, so that parts of a batch add up to the batch. Anchors whose centre lies in
the padding of a batch are ignored, in the loss and in predictions.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, sigmoid_focal_loss

from saccade.layers.anchors import Anchors, within
from saccade.models.retinanet import RetinaNetDetector
from saccade.recipes.detect import RetinaNet
from saccade.tasks.detect.task import Detect, Detections, sizes_of, targets, to_original
from saccade.tasks.task import Terms

POSITIVE, NEGATIVE = 0.5, 0.4  # overlap with a box
CANDIDATES = 1000  # boxes of a level that non-maximum suppression begins with


class RetinaNetTask(Detect):
    """A RetinaNet with focal and L1 loss."""

    def __init__(
        self,
        net: RetinaNetDetector,
        classes: Sequence[str],
        settings: RetinaNet,
        ids: Sequence[int] | None = None,
    ):
        super().__init__(net, classes, ids)
        self.places, self.width = net.anchors, net.num_classes
        self.anchors = Anchors(net.strides, net.scales, settings.least)
        self.alpha, self.gamma = settings.alpha, settings.gamma
        self.score, self.overlap, self.most = settings.score, settings.overlap, settings.most
        self.coder = BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
        self.matcher = Matcher(POSITIVE, NEGATIVE, allow_low_quality_matches=True)

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Tensor | None = None
    ) -> dict[str, Tensor]:
        return {**self.raw(image), "size": sizes_of(image, size)}

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Logits B N classes and offsets B N 4 of N anchors N 4; how many of N each level has."""
        logits, offsets = self.net(image)
        grids = [cast(tuple[int, int], tuple(x.shape[2:])) for x in logits]
        counts = [torch.full((1,), h * w * self.places, device="cpu") for h, w in grids]
        return {
            "logits": torch.cat([_rows(x, self.width) for x in logits], 1),
            "offsets": torch.cat([_rows(x, 4) for x in offsets], 1),
            "anchors": self.anchors(grids, image.device),
            "counts": torch.cat(counts),
        }

    def decoding(self) -> dict[str, Any]:
        return {
            **super().decoding(), "score": self.score, "overlap": self.overlap, "most": self.most,
            "candidates": CANDIDATES, "widest": self.coder.bbox_xform_clip,
        }  # fmt: skip

    # -- training ---------------------------------------------------------------------------

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        logits, offsets = output["logits"].float(), output["offsets"].float()
        images = targets(target, logits.device)
        sizes = output["size"].tolist()
        classes, boxes = logits.new_zeros(()), logits.new_zeros(())
        for i, (truth, labels) in enumerate(images):
            on = within(output["anchors"], sizes[i])
            rows = slice(None) if on.all() else on
            anchors, guess = output["anchors"][rows], logits[i, rows]
            match = self.matched(anchors, truth)
            positive = match >= 0
            count = positive.sum().clamp(min=1)
            mine = match[positive]

            one_hot = torch.zeros_like(guess)
            one_hot[positive, labels[mine]] = 1.0
            counts = (match != Matcher.BETWEEN_THRESHOLDS)[:, None]
            focal = sigmoid_focal_loss(guess, one_hot, self.alpha, self.gamma)
            classes = classes + (focal * counts).sum() / count

            goal = self.coder.encode_single(truth[mine], anchors[positive])
            away = F.l1_loss(offsets[i, rows][positive], goal, reduction="sum")
            boxes = boxes + away / count
        return {"classes": classes / len(images), "boxes": boxes / len(images)}

    @torch.no_grad()
    def matched(self, anchors: Float[Tensor, "N 4"], boxes: Float[Tensor, "n 4"]) -> Tensor:
        """For each anchor the number of its box, or below 0: background, or neither."""
        if not len(boxes):
            background = Matcher.BELOW_LOW_THRESHOLD
            return torch.full((len(anchors),), background, device=anchors.device)
        return self.matcher(box_iou(boxes, anchors))

    # -- prediction -------------------------------------------------------------------------

    @torch.no_grad()
    def predict(
        self,
        output: dict[str, Tensor],
        sizes: Sequence[tuple[int, int]] | None = None,
        score: float | None = None,
    ) -> list[Detections]:
        least = _logit(self.score if score is None else score)
        own = output["size"].tolist()
        originals = own if sizes is None else [tuple(map(int, size)) for size in sizes]
        return [
            self._boxes(output, i, size, original, least)
            for i, (size, original) in enumerate(zip(own, originals, strict=True))
        ]

    def _boxes(
        self,
        output: dict[str, Tensor],
        i: int,
        size: Sequence[int],
        original: Sequence[int],
        least: float,
    ) -> Detections:
        """Of image `i` alone, with logits above `least`."""
        logits, offsets = output["logits"][i].float(), output["offsets"][i].float()
        anchors, classes = output["anchors"], logits.shape[1]
        on = within(anchors, size)
        if not on.all():
            logits = logits.masked_fill(~on[:, None], -math.inf)
        parts, start = [], 0
        for count in output["counts"].tolist():
            flat = logits[start : start + count].flatten()
            over = (flat > least).nonzero()[:, 0]
            best = flat[over].topk(min(CANDIDATES, len(over))).indices
            parts.append(over[best] + start * classes)
            start += count
        place = torch.cat(parts)
        which, labels = place // classes, place % classes
        scores = logits.flatten()[place].sigmoid()
        boxes = self.coder.decode_single(offsets[which], anchors[which])
        boxes = clip_boxes_to_image(boxes, (size[0], size[1]))
        some = (boxes[:, 2:] > boxes[:, :2]).all(1)  # not beside the image
        boxes, labels, scores = boxes[some], labels[some], scores[some]
        best_boxes = batched_nms(boxes, scores, labels, self.overlap)[: self.most]
        return Detections(
            to_original(boxes[best_boxes], size, original), labels[best_boxes], scores[best_boxes]
        )


def _rows(x: Float[Tensor, "B D H W"], width: int) -> Float[Tensor, "B N K"]:
    """Channels (anchor, k) of every pixel as one row an anchor, pixel by pixel."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, width)


def _logit(share: float) -> float:
    if share <= 0:
        return -math.inf
    return math.inf if share >= 1 else math.log(share / (1 - share))
