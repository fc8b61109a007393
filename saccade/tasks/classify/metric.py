"""What evaluations count. Counts are whole numbers, so that shares of processes add up exactly."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.tasks.task import Metric


class Confusion(Metric):
    """Top-1, top-5, loss, and how often each class was taken for each other (row: the truth)."""

    def __init__(self, classes: Sequence[str]):
        self.classes = tuple(classes)
        n = len(self.classes)
        self.matrix = torch.zeros(n, n, dtype=torch.int64)
        self.in_five = 0
        self.nats = 0.0

    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None:
        logits, label = output["logits"].float().cpu(), target["label"].cpu()
        n = len(self.classes)
        top = logits.topk(min(5, n)).indices
        self.matrix += torch.bincount(label * n + top[:, 0], minlength=n * n).view(n, n)
        self.in_five += int((top == label[:, None]).any(1).sum())
        self.nats += float(F.cross_entropy(logits.double(), label, reduction="sum"))

    def state(self) -> dict[str, Any]:
        return {"matrix": self.matrix, "in_five": self.in_five, "nats": self.nats}

    def add(self, state: dict[str, Any]) -> None:
        self.matrix += state["matrix"]
        self.in_five += state["in_five"]
        self.nats += state["nats"]

    def compute(self) -> dict[str, float]:
        seen = int(self.matrix.sum())
        if not seen:
            raise ValueError("evaluation: no image was read; check the validation set")
        right = self.matrix.diagonal()
        per_class = self.matrix.sum(1)
        present = per_class > 0
        return {
            "top1": 100 * int(right.sum()) / seen,
            "top5": 100 * self.in_five / seen,
            "mean_class": 100 * float((right[present] / per_class[present]).mean()),
            "loss": self.nats / seen,
            "images": seen,
        }

    def tables(self) -> dict[str, Any]:
        return {"confusion": self.matrix.tolist(), "classes": list(self.classes)}
