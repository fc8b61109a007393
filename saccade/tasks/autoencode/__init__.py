"""Auto-encoding: reconstruct an image from a small code; the data need no labels."""

from typing import Any

from torch import nn

from saccade.data import augment, unlabelled
from saccade.models.autoencoder import AutoEncoder
from saccade.recipes.augment import Augment, Test
from saccade.recipes.autoencode import AutoEncode
from saccade.recipes.recipe import Recipe
from saccade.tasks.answers import image_answer
from saccade.tasks.autoencode.task import AutoEncodeTask
from saccade.tasks.definition import TaskDefinition, Transform, load_alike, only_model
from saccade.tasks.figures import Figure


def _network(recipe: Recipe, classes: int, options: dict[str, Any]) -> nn.Module:
    settings: Any = recipe.task
    return AutoEncoder(
        settings.encoder, settings.decoder, settings.dim, start=settings.start, **options
    )


def _start(net: nn.Module, source: str) -> None:
    """Take all weights of an auto-encoder with the same layers."""
    net.load_state_dict(load_alike(net, source).state_dict())


def _task(
    settings: AutoEncode, net: Any, classes: tuple[str, ...], notes: dict[str, Any]
) -> AutoEncodeTask:
    return AutoEncodeTask(net)


def _train_transform(settings: Augment, mean: Any, std: Any) -> Transform:
    for name in ("mixup", "cutmix"):
        if getattr(settings, name):
            raise ValueError(f"augment.{name}: mixes labels, of which there are none; set it 0")
    return augment.train(settings, mean, std)


def _batching(settings: Augment, images: Any) -> dict[str, Any]:
    return {"repeats": settings.repeats}


def _every(path: str, classes: list[str]) -> unlabelled.Pictures:
    return unlabelled.every(path)


def _align(images: Any, classes: list[str]) -> Any:
    return images  # no labels, so nothing to renumber


TASK = TaskDefinition(
    name="autoencode",
    settings=(AutoEncode,),
    augment=Augment,
    test=Test,
    data_hint="a folder of pictures",
    find=unlabelled.find,
    every=_every,
    align=_align,
    train_transform=_train_transform,
    test_transform=augment.test,
    batching=_batching,
    network=_network,
    task=_task,
    check_model=only_model(
        "autoencoder", "an AutoEncode task", "choose its layers by task.encoder and task.decoder"
    ),
    start=_start,
    figures={"ssim": Figure("ssim", digits=4), "l1": Figure("l1", digits=4)},
    hub_tag="image-to-image",
    answer=image_answer,
)
