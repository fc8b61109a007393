"""Boxes in an image: RetinaNet and DETR."""

from types import SimpleNamespace
from typing import Any

from PIL import Image

from saccade.data import boxes
from saccade.data.boxes import augment
from saccade.draw.boxes import drawn
from saccade.draw.masks import beside
from saccade.recipes.detect import BoxAugment, BoxTest, Detr, RetinaNet
from saccade.recipes.recipe import Recipe
from saccade.tasks.answers import BoxAnswer
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.detect import network
from saccade.tasks.detect.task import Detect, Detections
from saccade.tasks.figures import Figure

SIDE = 96  # pixels of a blank image: enough for every level of a pyramid


def _batching(settings: BoxAugment, images: Any) -> dict[str, Any]:
    """Wide and tall images may go into steps of their own."""
    grouped = settings.alike and isinstance(images, boxes.Boxes)
    return {"like": images.tall} if grouped else {}


def _sides(recipe: Recipe) -> tuple[int]:
    return (SIDE,)


def _answer(task: Detect, boxes: Detections, photo: Image.Image, name: str) -> BoxAnswer:
    order = boxes.scores.argsort(descending=True, stable=True)
    corners, labels, scores = (part[order].cpu().numpy() for part in boxes)
    return BoxAnswer(
        photo=photo, name=name, boxes=corners, numbers=labels, scores=scores, classes=task.classes
    )


def _example(task: Detect, photo: Image.Image, target: dict[str, Any], answer: Any) -> Image.Image:
    truth = SimpleNamespace(boxes=target["boxes"], labels=target["labels"], scores=None)
    return beside(drawn(photo, truth, task.classes), answer.draw())


TASK = TaskDefinition(
    name="detect",
    settings=(RetinaNet, Detr),
    augment=BoxAugment,
    test=BoxTest,
    data_hint=(
        "a folder with annotations/instances_train.json and images; see docs/detection-data.md"
    ),
    find=boxes.find,
    every=boxes.every,
    align=boxes.aligned,
    train_transform=augment.train,
    test_transform=augment.test,
    batching=_batching,
    network=network.build,
    task=network.task,
    example_sides=_sides,
    figures={name: Figure(name, "%") for name in ("AP", "AP50", "AP75")},
    command="detect",
    hub_tag="object-detection",
    untrained=network.untrained,
    answer=_answer,
    example=_example,
)
