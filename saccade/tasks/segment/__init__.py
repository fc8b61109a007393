"""Segmentation: a class for every pixel, by SemanticFPN."""

from typing import Any

import numpy as np
from PIL import Image

from saccade.data import masks
from saccade.data.masks import augment
from saccade.draw.masks import beside, overlay
from saccade.models import detectors, semantic_fpn
from saccade.recipes.recipe import Recipe
from saccade.recipes.segment import MaskAugment, MaskTest, Segment
from saccade.tasks.answers import MaskAnswer
from saccade.tasks.definition import TaskDefinition, Untrained
from saccade.tasks.figures import Figure
from saccade.tasks.segment.pixels import IGNORED
from saccade.tasks.segment.task import SegmentTask
from saccade.tasks.segment.views import SegmentViews


def _network(recipe: Recipe, classes: int, options: dict[str, Any]) -> Any:
    """SemanticFPN over the backbone that a recipe names."""
    settings: Any = recipe.task
    drop_path = options.pop("drop_path_rate", None)
    return semantic_fpn.build(
        recipe.model.name, classes, settings.dim, settings.inner, drop_path=drop_path, **options
    )


def _task(
    settings: Segment, net: Any, classes: tuple[str, ...], notes: dict[str, Any]
) -> SegmentTask:
    return SegmentTask(net, classes, settings.window, settings.overlap, notes.get("ids"))


def _sides(recipe: Recipe) -> tuple[int]:
    settings: Any = recipe.augment
    return (settings.crop,)


def _untrained(name: str) -> Untrained | None:
    """A SemanticFPN of a paper's table."""
    if name not in semantic_fpn.SEGMENTERS:
        return None
    net = detectors.DETECTORS[name]()
    sizes = {key: net.arguments[key] for key in ("dim", "inner")}
    return Untrained(net, Segment(**sizes), MaskTest())


def _answer(task: SegmentTask, labels: Any, photo: Image.Image, name: str) -> MaskAnswer:
    return MaskAnswer(photo=photo, name=name, mask=labels.cpu().numpy(), classes=task.classes)


def _example(task: SegmentTask, photo: Image.Image, target: Any, answer: Any) -> Image.Image:
    known = np.where(target == IGNORED, answer.mask, target)  # without a label: drawn as right
    return beside(overlay(photo, known, list(task.classes)), answer.draw())


TASK = TaskDefinition(
    name="segment",
    settings=(Segment,),
    augment=MaskAugment,
    test=MaskTest,
    data_hint="a folder with images, masks and classes.json; see docs/segmentation.md",
    find=masks.find,
    every=masks.every,
    align=masks.aligned,
    train_transform=augment.train,
    test_transform=augment.test,
    network=_network,
    task=_task,
    example_sides=_sides,
    figures={
        "miou": Figure("mIoU", "%"),
        "pixel_accuracy": Figure("pixel accuracy", "%"),
        "mean_class": Figure("mean of classes", "%"),
    },
    command="segment",
    hub_tag="image-segmentation",
    views=SegmentViews,
    untrained=_untrained,
    answer=_answer,
    example=_example,
)
