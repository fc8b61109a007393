"""Classification: cross-entropy with mixed and smoothed labels, and distillation.

    loss = - sum over classes of t log softmax(logits),   t = share y1 + (1 - share) y2

y1 and y2 are the (smoothed) labels of an image and of the one mixed into it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from saccade.tasks.classify.metric import Confusion
from saccade.tasks.task import Task, Terms


class Guess(NamedTuple):
    """A class and how sure the model is of it."""

    label: str
    share: float


class ClassifyTask(Task):
    """A classifier with (mixed, smoothed) cross-entropy."""

    best = "top1"

    def __init__(self, net: nn.Module, classes: Sequence[str], smoothing: float = 0.0):
        super().__init__()
        if not 0 <= smoothing < 1:
            raise ValueError(f"ClassifyTask: smoothing lies in 0..1, got {smoothing=}; try 0.1")
        self.net = net
        self.classes = tuple(classes)
        self.smoothing = smoothing

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        return {"logits": self.net(image)}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        return {"cross_entropy": self.cross_entropy(output["logits"], target)}

    def cross_entropy(self, logits: Tensor, target: dict[str, Any]) -> Tensor:
        logits = logits.float()
        each = _smoothed(logits, target["label"], self.smoothing)
        if "other" in target:
            share = target["share"]
            each = share * each + (1 - share) * _smoothed(logits, target["other"], self.smoothing)
        return each.mean()

    def predict(
        self, output: dict[str, Tensor], sizes: list[tuple[int, int]] | None = None, most: int = 5
    ) -> list[list[Guess]]:
        """The likeliest classes of each image, the likeliest first."""
        shares, labels = output["logits"].float().softmax(-1).topk(min(most, len(self.classes)))
        return [
            [Guess(self.classes[i], share) for share, i in zip(*row, strict=True)]
            for row in zip(shares.tolist(), labels.tolist(), strict=True)
        ]

    def metric(self) -> Confusion:
        return Confusion(self.classes)


class DistillTask(ClassifyTask):
    """A classifier that also agrees with a teacher about the same image.

    loss = (1 - weight) cross-entropy + weight T^2 KL(softmax(teacher / T) || softmax(student / T))

    Args:
        net: the classifier
        classes: their names
        smoothing: of the labels
        weight: the teacher's share of the loss
        temperature: T
        own: how many classes of the teacher's own are learnt, by a second head; 0: the set's
    """

    def __init__(
        self,
        net: nn.Module,
        classes: Sequence[str],
        *,
        smoothing: float = 0.0,
        weight: float = 0.5,
        temperature: float = 1.0,
        own: int = 0,
    ):
        super().__init__(net, classes, smoothing)
        if not 0 <= weight <= 1 or temperature <= 0:
            raise ValueError(
                f"DistillTask: weight lies in 0..1 and the temperature above 0, "
                f"got {weight=} {temperature=}"
            )
        self.weight = weight
        self.temperature = temperature
        self.second = nn.Linear(_features(net), own) if own else None

    def heads(self) -> list[nn.Module]:
        return super().heads() + ([self.second] if self.second is not None else [])

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Int64[Tensor, "B 2"] | None = None
    ) -> dict[str, Tensor]:
        """Logits; in training, those of the teacher's own classes (`second`) too, if asked for."""
        if self.second is None or not self.training:
            return super().forward(image, size)
        net: Any = self.net
        maps = net.forward_features(image)
        features = net.forward_head(maps, pre_logits=True)
        return {"logits": net.forward_head(maps), "second": self.second(features)}

    def learn_from(self, teacher: Callable[[Tensor], Tensor] | Tensor) -> None:
        """Take a teacher, which is needed to train; it is no part of what is trained or saved.

        Args:
            teacher: gives logits for images; or its logits for every training image
        """
        self.__dict__["teacher"] = teacher

    def prepare(self, image: Tensor, target: dict[str, Any]) -> dict[str, Any]:
        if "teacher" not in self.__dict__:
            raise RuntimeError("DistillTask: trains with a teacher; call learn_from first")
        teacher = self.__dict__["teacher"]
        if isinstance(teacher, Tensor):
            index = target["index"].to(teacher.device)
            return {**target, "teacher": teacher[index].to(image.device)}
        with torch.no_grad():
            return {**target, "teacher": teacher(image)}

    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms:
        T = self.temperature
        logits = output["logits" if self.second is None else "second"]
        student = F.log_softmax(logits.float() / T, -1)
        teacher = F.log_softmax(target["teacher"].float() / T, -1)
        gap = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
        return {
            "cross_entropy": (1 - self.weight) * self.cross_entropy(output["logits"], target),
            "teacher": self.weight * T * T * gap,
        }


def _features(net: Any) -> int:
    """The width of what the classifier reads."""
    width = getattr(net.get_classifier(), "in_features", None)
    return int(net.num_features if width is None else width)


def _smoothed(logits: Tensor, label: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing)
