"""Mask2Former's loss: each class of an image is matched with one query, which says its mask.

    classes = 2 cross-entropy over queries, those matched with nothing at the weight `nothing`
    masks   = 5 binary cross-entropy of matched masks / masks         both at `points` places, most
    overlap = 5 (1 - dice) of matched masks / masks                   of them where a mask is unsure

Matching and losses are transformers' own; each term sums those of all layers of the decoder.
`masks` counts those of the batch that the loss sees. A pixel without a label is in no mask.
"""

from typing import Any, cast

from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from saccade.models.mask2former import Mask2FormerSegmenter
from saccade.recipes.segment import Mask2Former
from saccade.tasks.segment.pixels import IGNORED
from saccade.tasks.segment.task import SegmentTask
from saccade.tasks.task import Terms

TERMS = {
    "loss_cross_entropy": ("classes", 2.0),
    "loss_mask": ("masks", 5.0),
    "loss_dice": ("overlap", 5.0),
}


class Mask2FormerTask(SegmentTask):
    """A Mask2Former with its losses."""

    def __init__(self, *arguments: Any, settings: Mask2Former, **options: Any):
        super().__init__(*arguments, **options)
        config = cast(Mask2FormerSegmenter, self.net).config
        self.__dict__["criterion"] = _criterion(config, settings)  # nothing in it is learned

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        """Log scores as logits; in training what each query says in each layer instead."""
        if not self.training:
            return super().forward(image, size)
        return cast(Mask2FormerSegmenter, self.net).queries(image)

    def raw(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        raise ValueError(
            "export: Mask2Former's attention inside of its own last masks is not traced for images "
            "of any size; export a model of `saccade train segment` or `segment_upernet` instead"
        )

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        if "logits" in output:  # of an evaluation: there is no query to match
            return super().loss(output, target)
        classes, masks = output["classes"].float(), output["masks"].float()
        total = classes.sum() + masks.sum()
        terms = {name: 0 * total for name, _ in TERMS.values()}
        if not total.isfinite():  # NaN matches nothing; the training loop names the term
            return dict.fromkeys(terms, total)
        truth = [_truth(mask) for mask in target["mask"]]
        criterion = self.__dict__["criterion"].to(classes.device)
        for layer in range(len(classes)):
            answer = _losses(criterion, masks[layer], classes[layer], truth)
            for name, value in answer.items():
                term, weight = TERMS[name]
                terms[term] = terms[term] + weight * value
        return terms


def _losses(criterion: Any, masks: Tensor, classes: Tensor, truth: list[Any]) -> dict[str, Tensor]:
    """transformers' losses of one layer; without any true mask, of the classes alone."""
    labels, shapes = [one[0] for one in truth], [one[1] for one in truth]
    if any(len(one) for one in labels):
        return criterion(masks, classes, shapes, labels)
    nothing = [(one.new_zeros(0), one.new_zeros(0)) for one in labels]
    return criterion.loss_labels(classes, labels, nothing)


def _truth(mask: UInt8[Tensor, "H W"]) -> tuple[Int64[Tensor, "n"], Float[Tensor, "n H W"]]:
    """The classes of an image, and where each of them is."""
    classes = mask.unique()
    classes = classes[classes != IGNORED]
    return classes.long(), (mask == classes[:, None, None]).float()


def _criterion(config: Any, settings: Mask2Former) -> Any:
    from transformers.models.mask2former.modeling_mask2former import Mask2FormerLoss

    config.no_object_weight, config.train_num_points = settings.nothing, settings.points
    weights = {name: weight for name, (_, weight) in TERMS.items()}
    criterion = Mask2FormerLoss(config, weights)
    criterion.empty_weight.fill_(1)[-1] = settings.nothing
    return criterion
