"""The figures of a classifier. Counts are integers, so that those of processes add up exactly."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.tasks.task import Metric

MOST = 12  # images that are listed of each kind


class EvaluatedImage(NamedTuple):
    """One evaluated image."""

    index: int
    label: int
    guess: int
    share: float
    """The model's score for its guess, in 0..1."""
    nats: float
    """The cross-entropy of the image."""


class Confusion(Metric):
    """Top-1, top-5, loss, and the confusion matrix (row: the true class)."""

    def __init__(self, classes: Sequence[str]):
        self.classes = tuple(classes)
        n = len(self.classes)
        self.matrix = torch.zeros(n, n, dtype=torch.int64)
        self.in_five = 0
        self.nats = 0.0
        self.rows: list[EvaluatedImage] = []

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        logits, label = output["logits"].float().cpu(), target["label"].cpu()
        n = len(self.classes)
        top = logits.topk(min(5, n)).indices
        self.matrix += torch.bincount(label * n + top[:, 0], minlength=n * n).view(n, n)
        self.in_five += int((top == label[:, None]).any(1).sum())
        nats = F.cross_entropy(logits.double(), label, reduction="none")
        self.nats += float(nats.sum())
        if "index" in target:
            shares = logits.softmax(-1)
            columns = (
                target["index"].tolist(), label.tolist(), top[:, 0].tolist(),
                shares.gather(1, top[:, :1])[:, 0].tolist(), nats.tolist(),
            )  # fmt: skip
            self._keep([EvaluatedImage(*row) for row in zip(*columns, strict=True)])

    def _keep(self, rows: list["EvaluatedImage"]) -> None:
        """Keep the images with the largest loss, and the mistakes with the highest scores."""
        every = {row.index: row for row in (*self.rows, *rows) if row.nats == row.nats}
        hard = sorted(every.values(), key=lambda row: (-row.nats, row.index))[:MOST]
        wrong = [row for row in every.values() if row.guess != row.label]
        sure = sorted(wrong, key=lambda row: (-row.share, row.index))[:MOST]
        self.rows = sorted({*hard, *sure})

    def state(self) -> dict[str, Any]:
        rows = [tuple(row) for row in self.rows]
        return {"matrix": self.matrix, "in_five": self.in_five, "nats": self.nats, "rows": rows}

    def add(self, state: dict[str, Any]) -> None:
        self.matrix += state["matrix"]
        self.in_five += state["in_five"]
        self.nats += state["nats"]
        self._keep([EvaluatedImage(*row) for row in state["rows"]])

    def compute(self) -> dict[str, float]:
        images = int(self.matrix.sum())
        if not images:
            raise ValueError("evaluation: no image was read; check the validation set")
        right = self.matrix.diagonal()
        per_class = self.matrix.sum(1)
        present = per_class > 0
        return {
            "top1": 100 * int(right.sum()) / images,
            "top5": 100 * self.in_five / images,
            "mean_class": 100 * float((right[present] / per_class[present]).mean()),
            "loss": self.nats / images,
            "images": images,
        }

    def tables(self) -> dict[str, Any]:
        tables = {"confusion": self.matrix.tolist(), "classes": list(self.classes)}
        return {**tables, "examples": self._examples()} if self.rows else tables

    def _examples(self) -> dict[str, list[dict[str, Any]]]:
        """Which images to look at: the surest mistakes, and those with the largest loss."""
        wrong = [row for row in self.rows if row.guess != row.label]
        sure = sorted(wrong, key=lambda row: -row.share)[:MOST]
        hard = sorted(self.rows, key=lambda row: -row.nats)[:MOST]

        def entries(rows: list[EvaluatedImage]) -> list[dict[str, Any]]:
            return [
                {
                    "index": row.index,
                    "caption": f"{self.classes[row.label]}, taken for {self.classes[row.guess]} "
                    f"({100 * row.share:.0f}%)"
                    if row.guess != row.label
                    else f"{self.classes[row.label]}, right with {100 * row.share:.0f}%",
                }
                for row in rows
            ]

        return {"Most confident mistakes": entries(sure), "Hardest images": entries(hard)}
