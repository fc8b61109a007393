"""Segmentation's metric: IoU and accuracy, counted over all pixels of a data set.

    IoU of a class = both / (truth or prediction)      mIoU: the mean over classes that occur

Counted is one matrix for the whole set (row: the truth), not a mean over images. Pixels without a
label are not counted; a class that neither truth nor prediction holds has no IoU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.tasks.segment.pixels import IGNORED, likeliest
from saccade.tasks.task import Metric

MOST = 12  # images that are named


class Overlap(Metric):
    """mIoU, pixel accuracy and mean class accuracy, in percent."""

    def __init__(self, classes: Sequence[str]):
        self.classes = tuple(classes)
        n = len(self.classes)
        self.matrix = torch.zeros(n, n, dtype=torch.int64)
        self.images = 0
        self.rows: dict[int, float] = {}
        """The share of right pixels, by image; the worst few."""

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        truths = target["mask"]
        sizes = [(truth.shape[0], truth.shape[1]) for truth in truths]
        indices = target["index"].tolist() if "index" in target else [None] * len(truths)
        for i, truth, guess in zip(indices, truths, likeliest(output, sizes), strict=True):
            self.count(truth, guess)
            known = truth != IGNORED
            if i is not None and known.any():
                self.rows[i] = float((truth[known] == guess[known]).float().mean())
        self.rows = dict(sorted(self.rows.items(), key=lambda row: row[1])[:MOST])

    def count(self, truth: Tensor, guess: Tensor) -> None:
        """One image's classes, pixel by pixel."""
        n = len(self.classes)
        known = truth != IGNORED
        pairs = truth[known].long() * n + guess[known].long()
        self.matrix += torch.bincount(pairs, minlength=n * n).view(n, n).cpu()
        self.images += 1

    def state(self) -> dict[str, Any]:
        return {"matrix": self.matrix, "images": self.images, "rows": self.rows}

    def add(self, state: dict[str, Any]) -> None:
        self.matrix += state["matrix"]
        self.images += state["images"]
        rows = {**self.rows, **state["rows"]}
        self.rows = dict(sorted(rows.items(), key=lambda row: row[1])[:MOST])

    def iou(self) -> Tensor:
        """Of each class, in percent; not a number where it does not occur."""
        both = self.matrix.diagonal().double()
        return 100 * both / (self.matrix.sum(0) + self.matrix.sum(1) - both)

    def accuracy(self) -> Tensor:
        """Of each class, in percent of its true pixels."""
        return 100 * self.matrix.diagonal().double() / self.matrix.sum(1)

    def compute(self) -> dict[str, float]:
        pixels = int(self.matrix.sum())
        if not self.images:
            raise ValueError("evaluation: no image was read; check the validation set")
        if not pixels:
            raise ValueError("evaluation: no pixel has a label; check masks and classes.json")
        return {
            "miou": float(self.iou().nanmean()),
            "pixel_accuracy": 100 * int(self.matrix.diagonal().sum()) / pixels,
            "mean_class": float(self.accuracy().nanmean()),
            "images": self.images,
        }

    def tables(self) -> dict[str, Any]:
        def plain(values: Tensor) -> list[float | None]:
            return [None if v != v else v for v in values.tolist()]

        columns = {
            "class": self.classes,
            "IoU": plain(self.iou()),
            "accuracy": plain(self.accuracy()),
            "pixels": self.matrix.sum(1).tolist(),
        }
        rows = zip(*columns.values(), strict=True)
        hard = [
            {"index": i, "caption": f"{100 * share:.1f}% of its pixels are right"}
            for i, share in self.rows.items()
        ]
        return {
            "per_class": [dict(zip(columns, row, strict=True)) for row in rows],
            "confusion": self.matrix.tolist(),
            "classes": list(self.classes),
            "about_confusion": "Counted in pixels of the images' own size.",
            "examples": {"Hardest images: the truth, and what was predicted": hard},
        }
