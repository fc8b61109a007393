"""Boxes in an image: RetinaNet and DETR."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from saccade.data import boxes
from saccade.data.boxes import augment as box_augment
from saccade.data.datasets import Splits
from saccade.engine.kinds.kind import Colour, Kind, Shown
from saccade.recipes import recipe as words
from saccade.tasks.task import Task

BLANK = 96  # pixels: enough for every level of a pyramid


class Detection(Kind):
    """A backbone under a detector."""

    augments, tests, verb = words.BoxAugment, words.BoxTest, "detect"
    wanted = "a folder with annotations/instances_train.json and images; see docs/detection-data.md"

    def find(self, path: str, data: words.Data, seed: int = 0) -> Splits:
        return boxes.find(path, data, seed)

    def every(self, path: str, classes: list[str]) -> boxes.Boxes:
        return boxes.every(path, classes)

    def aligned(self, images: Any, classes: list[str]) -> boxes.Boxes:
        return boxes.aligned(images, classes)

    def train(self, augment: words.BoxAugment, mean: Colour, std: Colour) -> Shown:
        return box_augment.train(augment, mean, std)

    def test(self, test: words.BoxTest, mean: Colour, std: Colour) -> Shown:
        return box_augment.test(test, mean, std)

    def over_batches(self, augment: words.BoxAugment, images: Any) -> dict[str, Any]:
        grouped = augment.alike and isinstance(images, boxes.Boxes)
        return {"like": images.tall} if grouped else {}

    def sides(self, recipe: words.Recipe) -> Sequence[int]:
        return (BLANK,)

    def net(self, recipe: words.Recipe, classes: int, settings: dict[str, Any]) -> nn.Module:
        build, _ = _parts(recipe.task)
        options = {"drop_path" if k == "drop_path_rate" else k: v for k, v in settings.items()}
        return build(recipe.model.name, classes, recipe.task, **options)

    def task(
        self,
        asked: words.RetinaNet | words.Detr,
        net: nn.Module,
        classes: tuple[str, ...],
        notes: dict[str, Any],
        teacher: nn.Module | None = None,
    ) -> Task:
        _, make = _parts(asked)
        return make(net, classes, asked, ids=notes.get("ids"))


def _parts(asked: Any) -> tuple[Any, Any]:
    """How to build the network and the task; each needs packages of its own."""
    if isinstance(asked, words.RetinaNet):
        from saccade.models.retinanet import build
        from saccade.tasks.retinanet import RetinaNetTask

        return build, RetinaNetTask
    from saccade.models.detr import build
    from saccade.tasks.detr import DetrTask

    return build, DetrTask


KIND = Detection()
