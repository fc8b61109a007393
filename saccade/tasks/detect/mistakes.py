"""Which boxes are right, which are missed, and which classes are confused.

Predicted boxes of a score of SURE or more are paired with the true ones, one to one, where the two
overlap by OVERLAP or more: first those of one class, then those left over, each time the largest
overlap first. So a true box without a partner is missed, a predicted box without one is a false
positive, and a pair of two classes is a confusion. Boxes inside a crowd are not counted.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torchvision.ops import box_area, box_iou

SURE, OVERLAP = 0.3, 0.5
BACKGROUND = "background"
MISSED, WRONG = "missed", "wrong"


class Partners(NamedTuple):
    """Of one image: for each true box its predicted one, and the other way; -1 for none."""

    truth: Int64[Tensor, "n"]
    guess: Int64[Tensor, "m"]
    counts: Bool[Tensor, "m"]
    """Predicted boxes that are sure enough and lie in no crowd."""

    def faults(
        self, classes: Int64[Tensor, "n"], labels: Int64[Tensor, "m"]
    ) -> tuple[Bool[Tensor, "n"], Bool[Tensor, "m"]]:
        """True boxes that are missed, and predicted ones that are false positives or of another
        class.

        Args:
            classes: of the true boxes
            labels: of the predicted ones
        """
        there = self.truth >= 0
        missed = ~there
        missed[there] = labels[self.truth[there]] != classes[there]
        wrong = self.counts & (self.guess < 0)
        paired = self.guess >= 0
        wrong[paired] = classes[self.guess[paired]] != labels[paired]
        return missed, wrong


def paired(
    truth: Float[Tensor, "n 4"],
    classes: Int64[Tensor, "n"],
    crowd: Bool[Tensor, "n"],
    boxes: Float[Tensor, "m 4"],
    labels: Int64[Tensor, "m"],
    scores: Float[Tensor, "m"],
) -> Partners:
    """Which predicted box stands for which true one."""
    n, m = len(truth), len(boxes)
    counts = (scores >= SURE) & boxes.isfinite().all(1)
    mine, theirs = torch.full((n,), -1), torch.full((m,), -1)
    if not n or not m:
        return Partners(mine, theirs, counts)
    overlap = box_iou(truth, boxes)
    overlap[crowd], overlap[:, ~counts] = 0.0, 0.0
    alike = classes[:, None] == labels
    for possible in (overlap * alike, overlap):
        places = (possible >= OVERLAP).nonzero()
        order = possible[tuple(places.T)].argsort(descending=True, stable=True)
        for i, j in places[order].tolist():
            if mine[i] < 0 and theirs[j] < 0:
                mine[i], theirs[j] = j, i
    if crowd.any():  # a crowd holds a box whose larger part lies in it
        counts = counts & ((theirs >= 0) | ~_within(boxes, truth[crowd]))
    return Partners(mine, theirs, counts)


def _within(boxes: Float[Tensor, "m 4"], crowds: Float[Tensor, "k 4"]) -> Bool[Tensor, "m"]:
    corner = torch.maximum(boxes[:, None, :2], crowds[:, :2])
    sides = (torch.minimum(boxes[:, None, 2:], crowds[:, 2:]) - corner).clamp(min=0)
    return (sides.prod(2) >= OVERLAP * box_area(boxes)[:, None]).any(1)


def of_image(one: dict[str, Tensor]) -> Partners:
    """The pairs of an image as the metric keeps it."""
    return paired(*(one[key] for key in ("truth", "classes", "crowd", "boxes", "labels", "scores")))


def confusion(images: list[dict[str, Tensor]], classes: int) -> list[list[int]]:
    """How often each class (row) was taken for each (column); the last of both is no box at all."""
    matrix = torch.zeros(classes + 1, classes + 1, dtype=torch.int64)
    for one in images:
        pairs, nothing = of_image(one), torch.tensor([classes])
        labels, truths = (torch.cat((one[key], nothing)) for key in ("labels", "classes"))
        alone = ~one["crowd"]
        rows = torch.cat((one["classes"][alone], truths[pairs.guess[_extra(pairs)]]))
        columns = torch.cat((labels[pairs.truth[alone]], one["labels"][_extra(pairs)]))
        matrix.index_put_((rows, columns), torch.tensor(1), accumulate=True)
    return matrix.tolist()


def _extra(pairs: Partners) -> Bool[Tensor, "m"]:
    """False positives: predicted boxes without a partner."""
    return pairs.counts & (pairs.guess < 0)


class Fault(NamedTuple):
    """What is wrong with the boxes of an image; the worst image sorts first."""

    missed: int
    wrong: int
    boxes: int

    @property
    def caption(self) -> str:
        """In words."""
        boxes = "1 box" if self.boxes == 1 else f"{self.boxes} boxes"
        return f"{self.missed} of {boxes} missed, {self.wrong} predicted wrongly"

    @property
    def order(self) -> tuple[int, int]:
        """Smaller for a worse image."""
        return -self.missed - self.wrong, -self.missed


def fault(one: dict[str, Tensor]) -> Fault:
    """What is wrong with an image as the metric keeps it."""
    missed, wrong = of_image(one).faults(one["classes"], one["labels"])
    alone = ~one["crowd"]
    return Fault(int((missed & alone).sum()), int(wrong.sum()), int(alone.sum()))
