"""Boxes as a set by RT-DETR: each query says one box, and each class has a sigmoid of its own.

    classes = varifocal loss / boxes      what a matched query should say is the overlap of its box
    boxes   = 5 sum over matches of |box - truth| / boxes        x y w h, as shares of the image
    overlap = 2 sum over matches of (1 - GIoU) / boxes
    shaken  = the three terms of denoising queries, which begin at shifted true boxes

Matching and losses are transformers' own; each term sums those of all layers of the decoder and of
the encoder's places. `boxes` counts those of the batch that the loss sees, as for DETR.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.ops import box_convert, clip_boxes_to_image

from saccade.models.detr import transformers
from saccade.models.rtdetr import RTDetrDetector
from saccade.recipes.detect import RTDetr
from saccade.tasks.detect.task import Detect, Detections, sizes_of, targets, to_original
from saccade.tasks.task import Terms

TERMS = {"loss_vfl": "classes", "loss_bbox": "boxes", "loss_giou": "overlap"}


class RTDetrTask(Detect):
    """An RT-DETR with its losses."""

    def __init__(
        self,
        net: RTDetrDetector,
        classes: Sequence[str],
        settings: RTDetr,
        ids: Sequence[int] | None = None,
    ):
        super().__init__(net, classes, ids)
        self.score, self.most = settings.score, settings.most
        self.__dict__["criterion"] = _criterion(
            net.detr.config
        )  # nothing in it is learned or saved

    def inputs(self, image: Tensor, size: Tensor, target: dict[str, Any]) -> tuple[Any, ...]:
        height, width = self._whole(*image.shape[2:])
        return image, size, _labels(target, image.device, height, width)

    def forward(
        self,
        image: Float[Tensor, "B C H W"],
        size: Tensor | None = None,
        labels: list[dict[str, Tensor]] | None = None,
    ) -> dict[str, Any]:
        """The detector's output, with each image's `size` and that of the whole, filled up."""
        output = self.net(image, labels if self.training else None)
        whole = image.new_tensor(self._whole(*image.shape[2:]))
        return {**output, "size": sizes_of(image, size), "whole": whole.expand(len(image), 2)}

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Logits B queries classes and boxes B queries 4, as shares of the image filled up."""
        output = self.net(image)
        return {name: output[name] for name in ("logits", "boxes")}

    def decoding(self) -> dict[str, Any]:
        stride = cast(RTDetrDetector, self.net).stride
        return {**super().decoding(), "score": self.score, "most": self.most, "stride": stride}

    def _whole(self, height: int, width: int) -> tuple[int, int]:
        return cast(RTDetrDetector, self.net).whole(height, width)

    def loss(self, output: dict[str, Any], target: dict[str, Any]) -> Terms:
        boxes = output["boxes"]
        terms = dict.fromkeys(TERMS.values(), boxes.new_zeros(()))
        classes = getattr(cast(Any, self.net).detr.model, "denoising_class_embed", None)
        if self.training and classes is not None:  # in every process, also one that sees no box
            terms["shaken"] = 0 * classes.weight.sum()
        if not boxes.isfinite().all():  # NaN matches nothing; the training loop names the term
            return dict.fromkeys(terms, output["logits"].sum() + boxes.sum())
        height, width = output["whole"][0].tolist()
        truth = _labels(target, boxes.device, height, width)
        guesses: dict[str, Any] = {
            "logits": output["logits"].float(), "pred_boxes": boxes.float(),
            "auxiliary_outputs": _layers(output["aux_logits"], output["aux_boxes"]),
        }  # fmt: skip
        if "shaken" in output:
            guesses["dn_auxiliary_outputs"] = _layers(
                output["shaken_logits"], output["shaken_boxes"]
            )
            guesses["denoising_meta_values"] = output["shaken"]
        for name, value in self.__dict__["criterion"](guesses, truth).items():
            term = next(word for loss, word in TERMS.items() if name.startswith(loss))
            term = "shaken" if "_dn_" in name else term
            terms[term] = terms[term] + value
        return terms

    @torch.no_grad()
    def predict(
        self,
        output: dict[str, Any],
        sizes: Sequence[tuple[int, int]] | None = None,
        score: float | None = None,
    ) -> list[Detections]:
        """The surest classes of all queries; a graph's outputs are of images without padding."""
        own = output["size"].tolist()
        originals = own if sizes is None else [tuple(map(int, size)) for size in sizes]
        least, images = self.score if score is None else score, []
        for i, (size, original) in enumerate(zip(own, originals, strict=True)):
            chances = output["logits"][i].float().sigmoid()
            count = min(self.most, chances.numel())
            scores, at = chances.flatten().topk(count)
            query, labels = at // chances.shape[1], at % chances.shape[1]
            corners = box_convert(output["boxes"][i].float()[query], "cxcywh", "xyxy")
            whole = output["whole"][i].tolist() if "whole" in output else self._whole(*size)
            height, width = whole
            corners = corners * corners.new_tensor((width, height, width, height))
            corners = clip_boxes_to_image(corners, (int(size[0]), int(size[1])))
            some = (scores >= least) & (corners[:, 2:] > corners[:, :2]).all(1)
            boxes = to_original(corners[some], size, original)
            images.append(Detections(boxes, labels[some], scores[some]))
        return images


def _labels(
    target: dict[str, Any], device: torch.device, height: float, width: float
) -> list[dict[str, Tensor]]:
    """The truth in transformers' words: class_labels, and boxes as shares of the whole image."""
    truth = []
    for boxes, labels in targets(target, device):
        shares = box_convert(boxes, "xyxy", "cxcywh")
        sides = shares.new_tensor((width, height, width, height))
        truth.append({"class_labels": labels, "boxes": shares / sides})
    return truth


def _layers(logits: Float[Tensor, "l B q K"], boxes: Float[Tensor, "l B q 4"]) -> list[dict]:
    pairs = zip(logits.float(), boxes.float(), strict=True)
    return [{"logits": a, "pred_boxes": b} for a, b in pairs]


def _criterion(config: Any) -> Any:
    transformers()
    from transformers.loss.loss_rt_detr import RTDetrLoss

    return RTDetrLoss(config)
