"""From a recipe to live objects: the network, the task and the loaders."""

import os
from typing import Any

import torch
from torch import nn

from saccade import tasks
from saccade.data.loader import Loader
from saccade.data.reader import Readable
from saccade.engine.distributed import Group
from saccade.models import arguments
from saccade.models.describe import timm_config
from saccade.models.graft import several
from saccade.models.saved import load
from saccade.recipes.recipe import Data, Recipe, change
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.task import Task


def model(recipe: Recipe, classes: int) -> nn.Module:
    """The network that the recipe names, with weights to start from if the recipe says which."""
    settings, definition = recipe.model, tasks.of(recipe)
    definition.check_model(settings.name)
    arguments.check_options(settings.options)
    options: dict[str, Any] = dict(settings.options)
    if settings.drop_path is not None:
        options["drop_path_rate"] = settings.drop_path
    try:
        net = definition.network(recipe, classes, options)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        drop = "drop_path_rate" in str(error)
        cure = "set model.drop_path=null" if drop else "look at model.options and task"
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"model {settings.name!r} and this recipe do not fit ({why}); {cure}"
        ) from error
    _begin(net, recipe)
    if recipe.loop.bn_decay is not None:
        for norm in net.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                norm.momentum = 1 - recipe.loop.bn_decay
    for norm in frozen_norms(net, recipe):
        norm.requires_grad_(False)
    if recipe.loop.checkpointing:
        _recompute(net, settings.name)
    return net


def frozen_norms(net: nn.Module, recipe: Recipe) -> list[nn.Module]:
    """The norms that a recipe leaves as they are: BatchNorm in the backbone, if any."""
    if recipe.loop.norms != "frozen":
        return []
    body: Any = getattr(net, "backbone", net)
    return [m for m in body.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _begin(net: nn.Module, recipe: Recipe) -> None:
    """Load the weights to start from, and make the grafts, in the order that the weights need.

    Weights of a model without grafts are loaded first, so that `keep` can use them; those of a
    grafted model need the grafts.
    """
    settings, definition = recipe.model, tasks.of(recipe)
    grafted = bool(settings.start and settings.graft) and getattr(load(settings.start), "grafts", 0)
    if settings.start and not grafted:
        definition.start(net, settings.start)
    if settings.graft:
        try:
            several(net, settings.graft)
        except ValueError as error:
            raise ValueError(f"model.graft: {error}") from error
    if settings.start and grafted:
        definition.start(net, settings.start)


def _recompute(net: nn.Module, name: str) -> None:
    enable = getattr(net, "set_grad_checkpointing", None)
    if not callable(enable):
        raise ValueError(f"loop.checkpointing: {name!r} cannot recompute its blocks; leave it off")
    enable()


def task(recipe: Recipe, classes: tuple[str, ...], notes: dict[str, Any] | None = None) -> Task:
    """The task with a fresh network, the same for the same seed.

    Args:
        recipe: what is trained
        classes: the names of the classes
        notes: what the task must know about the data, such as ids of classes
    """
    torch.manual_seed(recipe.loop.seed)
    net = model(recipe, len(classes))
    return tasks.of(recipe).task(recipe.task, net, classes, notes or {})


@torch.no_grad()
def try_sizes(task: Task, recipe: Recipe) -> None:
    """Run the network on blank images, so that a size it cannot take is refused before training."""
    for size in tasks.of(recipe).example_sides(recipe):
        try:
            task.eval()(torch.zeros(1, 3, size, size))
        except Exception as error:  # models of timm fail in many ways
            why = str(error).partition("\n")[0]
            raise ValueError(
                f"model {recipe.model.name!r} does not take images of {size} x {size} pixels "
                f"({why}); change the sizes in augment and test, or model.options"
            ) from error


def with_epochs(recipe: Recipe, images: int) -> Recipe:
    """The recipe with its number of epochs, where it counts iterations instead."""
    plan = recipe.schedule
    if plan.iterations is None:
        return recipe
    steps = max(images // recipe.loop.batch, 1)
    return change(recipe, schedule__epochs=-(-plan.iterations // steps))


def without_start(recipe: Recipe) -> Recipe:
    """The recipe without weights to start from: they come from elsewhere, or do not matter."""
    options = {key: value for key, value in recipe.model.options.items() if key != "pretrained"}
    return change(recipe, model__start="", model__options=options)


def training(recipe: Recipe, images: Readable, net: nn.Module, group: Group) -> Loader:
    """Training batches, augmented and mixed."""
    about, loop, definition = timm_config(net), recipe.loop, tasks.of(recipe)
    if loop.batch % group.world:
        raise ValueError(
            f"loop.batch: {loop.batch} images cannot be split evenly over {group.world} processes; "
            f"set loop.batch={max(loop.batch // group.world, 1) * group.world}"
        )
    transform = definition.train_transform(recipe.augment, about["mean"], about["std"])
    return Loader(
        images, transform, batch=loop.batch, part=loop.part, seed=loop.seed, rank=group.rank,
        world=group.world, workers=workers(recipe.data, group), limit=recipe.data.bad,
        **definition.batching(recipe.augment, images),
    )  # fmt: skip


def workers(data: Data, group: Group) -> int:
    """How many processes read images for this one.

    Beside a CPU that trains on all its cores, more than one would slow the training down.
    """
    if data.workers is not None:
        return data.workers
    if group.device.type == "cpu":
        return 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(max((os.cpu_count() or 1) // here, 1), 16)


def evaluation(recipe: Recipe, images: Readable, net: nn.Module, group: Group) -> Loader:
    """Evaluation batches: every image once, over all processes."""
    return unaugmented(
        tasks.of(recipe), recipe.test, images, net, group, recipe.loop.batch,
        workers(recipe.data, group), recipe.data.bad,
    )  # fmt: skip


def unaugmented(
    definition: TaskDefinition,
    test: Any,
    images: Readable,
    net: nn.Module,
    group: Group,
    batch: int,
    workers: int = 0,
    limit: float = 1.0,
) -> Loader:
    """A loader of every image once, resized and normalised by these test settings.

    Args:
        definition: the task
        test: its test settings
        images: what is read
        net: the network, for its mean and standard deviation of colours
        group: the processes that share the images
        batch: images in a batch, over all processes
        workers: processes that read for this one
        limit: share of unreadable images beyond which reading stops
    """
    about = timm_config(net)
    return Loader(
        images, definition.test_transform(test, about["mean"], about["std"]), batch=batch,
        rank=group.rank, world=group.world, workers=workers, shuffle=False, whole=False,
        limit=limit,
    )  # fmt: skip
