"""Super-resolution: enlarge pictures; the data need no labels."""

from dataclasses import replace
from typing import Any

from torch import nn

from saccade.data import unlabelled
from saccade.models.upscaler import Upscaler
from saccade.recipes.recipe import Recipe
from saccade.recipes.upscale import PatchAugment, Upscale, WholeTest
from saccade.tasks.answers import image_answer
from saccade.tasks.definition import TaskDefinition, load_alike, only_model
from saccade.tasks.figures import Figure
from saccade.tasks.upscale import patches
from saccade.tasks.upscale.task import UpscaleTask


def _network(recipe: Recipe, classes: int, options: dict[str, Any]) -> nn.Module:
    settings: Any = recipe.task
    options.pop("drop_path_rate", None)
    return Upscaler(
        settings.factor, settings.body, settings.up, settings.dim, settings.depth, **options
    )


def _start(net: Any, source: str) -> None:
    """Take all weights that a network of the same blocks has; its factor may be another."""
    other: Any = load_alike(net, source, apart_from=["factor"])
    weights = other.state_dict()
    if other.factor != net.factor:  # the up-sampling layers differ
        weights = {key: value for key, value in weights.items() if not key.startswith("up.")}
    net.load_state_dict(weights, strict=False)


def _task(
    settings: Upscale, net: Any, classes: tuple[str, ...], notes: dict[str, Any]
) -> UpscaleTask:
    return UpscaleTask(net)


def _sides(recipe: Recipe) -> tuple[int]:
    settings: Any = recipe.augment
    return (settings.size,)


TASK = TaskDefinition(
    name="upscale",
    settings=(Upscale,),
    augment=PatchAugment,
    test=WholeTest,
    data_hint="a folder of pictures",
    find=unlabelled.find,
    every=lambda path, classes: unlabelled.every(path),
    align=lambda images, classes: images,
    train_transform=patches.train,
    test_transform=patches.test,
    network=_network,
    task=_task,
    check_model=only_model(
        "upscaler", "an Upscale task", "choose its layers by task.body and task.up"
    ),
    example_sides=_sides,
    start=_start,
    figures={
        "psnr": Figure("PSNR", "dB"),
        "ssim": Figure("SSIM", digits=4),
        "bicubic_psnr": Figure("PSNR of bicubic", "dB"),
        "bicubic_ssim": Figure("SSIM of bicubic", digits=4),
    },
    command="upscale",
    hub_tag="image-to-image",
    whole=lambda test: replace(test, most=None),
    answer=image_answer,
)
