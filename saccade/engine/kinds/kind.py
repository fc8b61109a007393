"""What the engine asks of every kind of task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import timm
from torch import nn

from saccade.data.datasets import Splits
from saccade.data.reader import Readable
from saccade.models import zoo
from saccade.models.saved import load
from saccade.recipes.recipe import Data, Recipe
from saccade.tasks.task import Task
from saccade.words import nearest

Colour = Sequence[float]
Shown = Callable[..., Any]  # (image, target) to (tensor, target); (image) to a tensor


class Kind(ABC):
    """How a task's images are found and shown, and how its network and loss are built."""

    augments: type
    """The recipe's words for what is done to a training image,"""
    tests: type
    """and to an evaluated one."""
    wanted: str
    """What --data should be."""
    verb: str
    """The command that uses a trained model on pictures."""

    @abstractmethod
    def find(self, path: str, data: Data, seed: int = 0) -> Splits:
        """What to train and validate on, at a path."""

    @abstractmethod
    def every(self, path: str, classes: list[str]) -> Readable:
        """What there is at a path to test a model on, its classes in the model's order."""

    @abstractmethod
    def aligned(self, images: Any, classes: list[str]) -> Readable:
        """The images with labels in the order of a model's classes."""

    @abstractmethod
    def train(self, augment: Any, mean: Colour, std: Colour, /) -> Shown: ...

    @abstractmethod
    def test(self, test: Any, mean: Colour, std: Colour) -> Shown: ...

    def check(self, name: str) -> None:
        """Refuse a network's name that is unknown, with the nearest."""
        if not timm.is_model(name):
            close = nearest(name, [*zoo.VARIANTS, *timm.list_models()])
            raise ValueError(f"no model named {name!r}; did you mean {close!r}?")

    def over_batches(self, augment: Any, images: Any, /) -> dict[str, Any]:
        """What a loader does to whole batches."""
        return {}

    @abstractmethod
    def sides(self, recipe: Recipe) -> Sequence[int]:
        """Sides of blank images that a network should take, to find out early."""

    @abstractmethod
    def net(self, recipe: Recipe, classes: int, settings: dict[str, Any]) -> nn.Module:
        """The network by the recipe's name; `settings` are timm's, such as drop_path_rate."""

    def start(self, net: Any, source: str) -> None:
        """Take the backbone's weights from a saved model or a run, which may be of another kind."""
        try:
            net.backbone_from(load(source))
        except ValueError as error:
            raise ValueError(f"model.start: {source!r}: {error}") from error

    @abstractmethod
    def task(
        self,
        asked: Any,
        net: nn.Module,
        classes: tuple[str, ...],
        notes: dict[str, Any],
        teacher: nn.Module | None = None,
    ) -> Task:
        """The task by its words in the recipe; `notes` are what its data want remembered."""
