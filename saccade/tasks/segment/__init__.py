"""Segmentation: a class for every pixel, by SemanticFPN, UperNet or Mask2Former."""

from typing import Any

import numpy as np
from PIL import Image

from saccade.data import masks
from saccade.data.masks import augment
from saccade.draw.masks import beside, overlay
from saccade.recipes.recipe import Recipe
from saccade.recipes.segment import Mask2Former, MaskAugment, MaskTest, Segment, UperNet
from saccade.tasks.answers import MaskAnswer
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.figures import Figure
from saccade.tasks.segment import network
from saccade.tasks.segment.pixels import IGNORED
from saccade.tasks.segment.task import SegmentTask
from saccade.tasks.segment.views import SegmentViews


def _sides(recipe: Recipe) -> tuple[int]:
    settings: Any = recipe.augment
    return (settings.crop,)


def _answer(task: SegmentTask, labels: Any, photo: Image.Image, name: str) -> MaskAnswer:
    return MaskAnswer(photo=photo, name=name, mask=labels.cpu().numpy(), classes=task.classes)


def _example(task: SegmentTask, photo: Image.Image, target: Any, answer: Any) -> Image.Image:
    known = np.where(target == IGNORED, answer.mask, target)  # without a label: drawn as right
    return beside(overlay(photo, known, list(task.classes)), answer.draw())


TASK = TaskDefinition(
    name="segment",
    settings=(Segment, UperNet, Mask2Former),
    augment=MaskAugment,
    test=MaskTest,
    data_hint="a folder with images, masks and classes.json; see docs/segmentation.md",
    find=masks.find,
    every=masks.every,
    align=masks.aligned,
    train_transform=augment.train,
    test_transform=augment.test,
    network=network.build,
    task=network.task,
    example_sides=_sides,
    figures={
        "miou": Figure("mIoU", "%"),
        "pixel_accuracy": Figure("pixel accuracy", "%"),
        "mean_class": Figure("mean of classes", "%"),
    },
    command="segment",
    hub_tag="image-segmentation",
    views=SegmentViews,
    untrained=network.untrained,
    answer=_answer,
    example=_example,
)
