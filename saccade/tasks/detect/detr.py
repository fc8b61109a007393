"""Boxes as a set: every query says one box or nothing, and is matched to the boxes one to one.

    classes = cross-entropy over queries, weighted: 1 for a matched one, `nothing` for the rest
    boxes   = 5 sum over matches of |box - truth| / boxes        x y w h, as shares of the image
    overlap = 2 sum over matches of (1 - GIoU) / boxes

Matching and losses are transformers' own; each term sums those of all layers of the decoder.

`boxes` counts those of the batch that the loss sees, as in DETR, and the cross-entropy divides by
the weights it sums. So the parts of an accumulated batch add up to the whole exactly where they
hold equally many boxes, and approximately otherwise.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.ops import box_convert, clip_boxes_to_image

from saccade.models.detr import DetrDetector, transformers
from saccade.recipes.detect import Detr
from saccade.tasks.detect.task import Detect, Detections, sizes_of, targets
from saccade.tasks.task import Terms

TERMS = {"loss_ce": "classes", "loss_bbox": "boxes", "loss_giou": "overlap"}


class DetrTask(Detect):
    """A DETR with Hungarian losses."""

    def __init__(
        self,
        net: DetrDetector,
        classes: Sequence[str],
        settings: Detr,
        ids: Sequence[int] | None = None,
    ):
        super().__init__(net, classes, ids)
        config = net.detr.config
        self.score = settings.score
        self.__dict__["criterion"] = _criterion(config)  # nothing in it is learned or saved
        self.weights = {
            "classes": 1.0,
            "boxes": float(config.bbox_loss_coefficient),
            "overlap": float(config.giou_loss_coefficient),
        }

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Tensor | None = None
    ) -> dict[str, Tensor]:
        return {**self.net(image, size), "size": sizes_of(image, size)}

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Logits B queries (classes + 1) and boxes B queries 4, as shares of the image."""
        output = self.net(image)
        return {name: output[name] for name in ("logits", "boxes")}

    def decoding(self) -> dict[str, Any]:
        return {**super().decoding(), "score": self.score}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        sizes = output["size"].float().to(output["boxes"].device)
        truth = []
        for (boxes, labels), size in zip(targets(target, sizes.device), sizes, strict=True):
            shares = box_convert(boxes, "xyxy", "cxcywh") / size.flip(0).repeat(2)
            truth.append({"class_labels": labels, "boxes": shares})
        predictions: dict[str, Any] = {
            "logits": output["logits"].float(), "pred_boxes": output["boxes"].float(),
        }  # fmt: skip
        if "aux_logits" in output:
            early = zip(output["aux_logits"].float(), output["aux_boxes"].float(), strict=True)
            predictions["auxiliary_outputs"] = [{"logits": a, "pred_boxes": b} for a, b in early]
        if (
            not predictions["pred_boxes"].isfinite().all()
        ):  # NaN matches nothing; the training loop names the term
            return dict.fromkeys(
                TERMS.values(), predictions["logits"].sum() + predictions["pred_boxes"].sum()
            )
        criterion = self.__dict__["criterion"].to(sizes.device)
        terms = dict.fromkeys(TERMS.values(), sizes.new_zeros(()))
        for name, value in criterion(predictions, truth).items():
            term = next(word for loss, word in TERMS.items() if name.startswith(loss))
            terms[term] = terms[term] + self.weights[term] * value
        return terms

    @torch.no_grad()
    def predict(
        self,
        output: dict[str, Tensor],
        sizes: Sequence[tuple[int, int]] | None = None,
        score: float | None = None,
    ) -> list[Detections]:
        originals = output["size"].tolist() if sizes is None else sizes
        least = self.score if score is None else score
        images = []
        for logits, boxes, (H, W) in zip(
            output["logits"].float(), output["boxes"].float(), originals, strict=True
        ):
            scores, labels = logits.softmax(-1)[:, :-1].max(-1)
            scores, order = scores.sort(descending=True)
            order = order[scores >= least]
            corners = box_convert(boxes[order], "cxcywh", "xyxy")
            corners = corners * corners.new_tensor((W, H, W, H))
            corners = clip_boxes_to_image(corners, (int(H), int(W)))
            images.append(Detections(corners, labels[order], scores[: len(order)]))
        return images


def _criterion(config: Any) -> Any:
    transformers()
    from transformers.loss.loss_for_object_detection import HungarianMatcher, ImageLoss

    matcher = HungarianMatcher(config.class_cost, config.bbox_cost, config.giou_cost)
    return ImageLoss(matcher, config.num_labels, config.eos_coefficient, ["labels", "boxes"])
