"""Boxes in an image: RetinaNet, DETR and RT-DETR."""

from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from saccade.data import boxes
from saccade.data.boxes import augment
from saccade.draw.boxes import draw_boxes
from saccade.draw.masks import beside
from saccade.recipes.detect import BoxAugment, BoxTest, Detr, RetinaNet, RTDetr
from saccade.recipes.recipe import Recipe
from saccade.tasks.answers import BoxAnswer
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.detect import mistakes, network
from saccade.tasks.detect.task import Detect, Detections
from saccade.tasks.detect.views import DetectViews
from saccade.tasks.figures import Figure

LEGIBLE = 256  # pixels of a short side on which names of boxes can be read
SIDE = 96  # pixels of a blank image: enough for every level of a pyramid


def _batching(settings: BoxAugment, images: Any) -> dict[str, Any]:
    """Wide and tall images may go into steps of their own, rare classes may come more often."""
    if not isinstance(images, boxes.Boxes):
        return {}
    grouped = {"like": images.tall} if settings.alike else {}
    return {**grouped, **({"often": images.often(settings.rare)} if settings.rare else {})}


def _sides(recipe: Recipe) -> tuple[int]:
    return (SIDE,)


def _answer(task: Detect, boxes: Detections, photo: Image.Image, name: str) -> BoxAnswer:
    order = boxes.scores.argsort(descending=True, stable=True)
    corners, labels, scores = (part[order].cpu().numpy() for part in boxes)
    return BoxAnswer(
        photo=photo, name=name, boxes=corners, numbers=labels, scores=scores, classes=task.classes
    )


def example(task: Detect, photo: Image.Image, target: dict[str, Any], answer: Any) -> Image.Image:
    """Two drawings side by side: the true boxes, missed ones marked; the predicted, wrong ones
    marked."""
    truth = SimpleNamespace(boxes=target["boxes"], labels=target["labels"], scores=None)
    guess = SimpleNamespace(
        boxes=torch.from_numpy(answer.boxes), labels=torch.from_numpy(answer.numbers),
        scores=torch.from_numpy(answer.scores),
    )  # fmt: skip
    if getattr(answer, "masks", None) is not None:
        truth.masks, guess.masks = target["masks"], torch.from_numpy(answer.masks)
    pairs = mistakes.paired(
        truth.boxes, truth.labels, target["crowd"], guess.boxes, guess.labels, guess.scores
    )
    missed, wrong = pairs.faults(truth.labels, guess.labels)
    missed &= ~target["crowd"]
    sure = guess.scores >= mistakes.SURE
    sure_boxes = SimpleNamespace(**{key: value[sure] for key, value in vars(guess).items()})
    factor = max(1, LEGIBLE // min(photo.size))
    photo = photo.resize((factor * photo.width, factor * photo.height))
    for side in (truth, sure_boxes):
        side.boxes = factor * side.boxes
        if hasattr(side, "masks"):
            side.masks = side.masks.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    words = [mistakes.MISSED if one else "" for one in missed.tolist()]
    signs = [mistakes.WRONG if one else "" for one in wrong[sure].tolist()]
    return beside(
        draw_boxes(photo, truth, task.classes, words),
        draw_boxes(photo, sure_boxes, task.classes, signs),
    )


TASK = TaskDefinition(
    name="detect",
    settings=(RetinaNet, Detr, RTDetr),
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
    figures={name: Figure(name, "%") for name in ("AP", "AP50", "AP75", "AR100")},
    command="detect",
    hub_tag="object-detection",
    views=DetectViews,
    untrained=network.untrained,
    answer=_answer,
    example=example,
)
