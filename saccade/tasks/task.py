"""The contract of every task, so that one training loop serves all.

    output = task(image, size)           tensors by name, the same in training and evaluation
    terms  = task.loss(output, target)   named and weighted; the engine minimises their sum
    answer = task.predict(output, sizes) for people: labels, boxes, masks
    metric = task.metric()               .update(output, target) batch by batch, then .compute()

Images of a batch are padded to one size, of which `size` (height, width) is each one's own.
A new task is a new file, never a branch in the loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

Terms = dict[str, Tensor]


class Metric(ABC):
    """The figures of an evaluation; each process counts its images and `add`s others' counts."""

    unread: dict[str, str]  # images left out because they cannot be read, and why
    warnings: tuple[str, ...] = ()  # what is odd about the images, in sentences

    @abstractmethod
    def update(self, output: dict[str, Tensor], target: dict[str, Any]) -> None: ...

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What this process has counted, such that `add` can take it."""

    @abstractmethod
    def add(self, state: dict[str, Any]) -> None:
        """Count what another process has counted."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The figures, by name."""

    def tables(self) -> dict[str, Any]:
        """Results that are too large for a line of figures, as plain lists: a confusion matrix."""
        return {}


class Task(nn.Module, ABC):
    """A network, its loss and its metric."""

    best: ClassVar[str]  # the figure by which a checkpoint is the best, larger is better
    net: nn.Module  # what is trained and shipped; speaks timm's group_matcher

    @abstractmethod
    def loss(self, output: dict[str, Tensor], target: dict[str, Any]) -> Terms: ...

    @abstractmethod
    def predict(self, output: dict[str, Tensor], sizes: list[tuple[int, int]]) -> Any: ...

    @abstractmethod
    def metric(self) -> Metric: ...

    def infer(self, image: Tensor, size: Tensor | None = None) -> dict[str, Tensor]:
        """The output for new pictures, for which no target is known."""
        return self(image, size)

    def raw(self, image: Tensor) -> dict[str, Tensor]:
        """What an exported graph gives for images without padding; nothing branches on values."""
        return {"logits": self(image)["logits"]}

    def through_graph(
        self, graph: Callable[[Tensor], dict[str, Tensor]], image: Tensor
    ) -> dict[str, Tensor]:
        """Outputs of an exported graph of `raw` for images, seen as in an evaluation."""
        return graph(image)

    def decoding(self) -> dict[str, Any]:
        """The numbers that `predict` uses, for programs that decode raw outputs without saccade."""
        return {}

    def prepare(self, image: Tensor, target: dict[str, Any]) -> dict[str, Any]:
        """The target as training sees it, without gradients; a teacher adds its view here."""
        return target

    def inputs(self, image: Tensor, size: Tensor, target: dict[str, Any]) -> tuple[Any, ...]:
        """What training calls the task with; one whose network learns from the truth as well (boxes
        to be put right) adds it."""
        return image, size

    def heads(self) -> list[nn.Module]:
        """Last layers, whose rows are classes: no matrices that muon should orthogonalise."""
        head = getattr(self.net, "get_classifier", lambda: None)()
        return [head] if isinstance(head, nn.Module) else []

    def no_weight_decay(self) -> set[str]:
        """Names of what layers declare `undecayed`, such as position tables."""
        return {
            f"{path}.{name}" if path else name
            for path, module in self.named_modules()
            for name in getattr(module, "undecayed", ())
        }
