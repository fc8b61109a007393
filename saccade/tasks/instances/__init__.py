"""Boxes with a mask for each object: Mask R-CNN. Data, drawing and command are detection's."""

from functools import partial
from typing import Any

from PIL import Image
from torch import nn

from saccade.data import boxes
from saccade.models import mask_rcnn
from saccade.recipes.detect import BoxAugment, BoxTest
from saccade.recipes.instances import MaskRCNN
from saccade.recipes.recipe import Recipe
from saccade.tasks import detect
from saccade.tasks.answers import InstanceAnswer
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.figures import Figure
from saccade.tasks.instances.task import Instances, InstancesTask


def _network(recipe: Recipe, classes: int, options: dict[str, Any]) -> nn.Module:
    """Mask R-CNN over the backbone that a recipe names."""
    options = {"drop_path" if k == "drop_path_rate" else k: v for k, v in options.items()}
    return mask_rcnn.build(recipe.model.name, classes, recipe.task, **options)


def _task(
    settings: MaskRCNN, net: Any, classes: tuple[str, ...], notes: dict[str, Any]
) -> InstancesTask:
    return InstancesTask(net, classes, settings, ids=notes.get("ids"))


def _answer(
    task: InstancesTask, objects: Instances, photo: Image.Image, name: str
) -> InstanceAnswer:
    order = objects.scores.argsort(descending=True, stable=True)
    corners, labels, scores, masks = (part[order].cpu().numpy() for part in objects)
    return InstanceAnswer(
        photo=photo, name=name, boxes=corners, numbers=labels, scores=scores, masks=masks,
        classes=task.classes,
    )  # fmt: skip


TASK = TaskDefinition(
    name="instances",
    settings=(MaskRCNN,),
    augment=BoxAugment,
    test=BoxTest,
    data_hint=(
        'a COCO set with "segmentation": a folder with annotations/instances_train.json and '
        "images; see docs/detection-data.md"
    ),
    find=partial(boxes.find, outlines=True),
    every=partial(boxes.every, outlines=True),
    align=boxes.aligned,
    train_transform=detect.TASK.train_transform,
    test_transform=detect.TASK.test_transform,
    batching=detect.TASK.batching,
    network=_network,
    task=_task,
    example_sides=detect.TASK.example_sides,
    figures={
        name: Figure(label, "%")
        for name, label in (
            ("mask_AP", "mask AP"),
            ("mask_AP50", "mask AP50"),
            ("mask_AP75", "mask AP75"),
            ("AP", "AP"),
        )
    },
    command="detect",
    hub_tag="image-segmentation",
    answer=_answer,
    example=detect.example,
)
