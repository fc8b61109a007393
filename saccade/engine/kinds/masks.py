"""A class for every pixel."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from saccade.data import masks
from saccade.data.datasets import Splits
from saccade.data.masks import augment as mask_augment
from saccade.engine.kinds.kind import Colour, Kind
from saccade.models import semantic_fpn
from saccade.recipes import recipe as words
from saccade.tasks.segment import Segment


class Segmentation(Kind):
    """SemanticFPN over a backbone."""

    augments, tests, verb = words.MaskAugment, words.MaskTest, "segment"
    wanted = "a folder with images, masks and classes.json; see docs/dense.md"

    def find(self, path: str, data: words.Data, seed: int = 0) -> Splits:
        return masks.find(path, data, seed)

    def every(self, path: str, classes: list[str]) -> masks.Masks:
        return masks.every(path, classes)

    def aligned(self, images: Any, classes: list[str]) -> masks.Masks:
        return masks.aligned(images, classes)

    def train(
        self, augment: words.MaskAugment, mean: Colour, std: Colour
    ) -> mask_augment.MaskTransform:
        return mask_augment.train(augment, mean, std)

    def test(self, test: words.MaskTest, mean: Colour, std: Colour) -> mask_augment.MaskShown:
        return mask_augment.test(test, mean, std)

    def sides(self, recipe: words.Recipe) -> Sequence[int]:
        augment: Any = recipe.augment
        return (augment.crop,)

    def net(self, recipe: words.Recipe, classes: int, settings: dict[str, Any]) -> nn.Module:
        drop_path = settings.pop("drop_path_rate", None)
        task: Any = recipe.task
        return semantic_fpn.build(
            recipe.model.name, classes, task.dim, task.inner, drop_path=drop_path, **settings
        )

    def task(
        self,
        asked: words.Segment,
        net: nn.Module,
        classes: tuple[str, ...],
        notes: dict[str, Any],
        teacher: nn.Module | None = None,
    ) -> Segment:
        return Segment(net, classes, asked.window, asked.overlap, notes.get("ids"))


KIND = Segmentation()
