"""Classification: one class for each image, with or without a teacher."""

from typing import Any

from PIL import Image

from saccade.data import augment, datasets
from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify, Distill
from saccade.tasks.answers import ClassAnswer
from saccade.tasks.classify import network
from saccade.tasks.classify.baseline import fit_linear_model
from saccade.tasks.classify.task import ClassifyTask, DistillTask
from saccade.tasks.classify.teacher import give_teacher
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.figures import Figure


def _task(
    settings: Classify, net: Any, classes: tuple[str, ...], notes: dict[str, Any]
) -> ClassifyTask:
    if isinstance(settings, Distill):
        return DistillTask(
            net, classes, smoothing=settings.smoothing, weight=settings.weight,
            temperature=settings.temperature, own=settings.own,
        )  # fmt: skip
    return ClassifyTask(net, classes, smoothing=settings.smoothing)


def _batching(settings: Augment, images: Any) -> dict[str, Any]:
    mixes = settings.mixup > 0 or settings.cutmix > 0
    return {"repeats": settings.repeats, "mix": augment.Mix(settings) if mixes else None}


def _answer(task: ClassifyTask, guesses: Any, photo: Image.Image, name: str) -> ClassAnswer:
    labels, shares = zip(*guesses, strict=True)
    return ClassAnswer(photo=photo, name=name, labels=labels, scores=shares)


TASK = TaskDefinition(
    name="classify",
    settings=(Classify, Distill),
    augment=Augment,
    test=Test,
    data_hint="a folder of class folders, or mnist for a first try",
    find=datasets.find,
    every=datasets.every,
    align=datasets.aligned,
    train_transform=augment.train,
    test_transform=augment.test,
    batching=_batching,
    network=network.build,
    task=_task,
    start=network.start,
    prepare=give_teacher,
    baseline=fit_linear_model,
    figures={
        "top1": Figure("top-1", "%"),
        "top5": Figure("top-5", "%"),
        "mean_class": Figure("mean of classes", "%"),
    },
    command="predict",
    hub_tag="image-classification",
    untrained=network.untrained,
    answer=_answer,
)
