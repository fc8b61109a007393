"""From a recipe's words to live objects, one function a word."""

import os
from typing import Any

import torch
from torch import nn

from saccade.data.loader import Loader
from saccade.data.reader import Readable
from saccade.engine import kinds
from saccade.engine.distributed import Group
from saccade.models.describe import card
from saccade.recipes import recipe as words
from saccade.tasks.task import Task


def model(recipe: words.Recipe, classes: int) -> nn.Module:
    """The network by name, of saccade or timm, with weights to start from if the recipe asks."""
    asked, kind = recipe.model, kinds.of(recipe)
    kind.check(asked.name)
    settings: dict[str, Any] = dict(asked.options)
    if asked.drop_path is not None:
        settings["drop_path_rate"] = asked.drop_path
    try:
        net = kind.net(recipe, classes, settings)
    except TypeError as error:
        cure = "; set model.drop_path=null" if "drop_path_rate" in str(error) else ""
        raise ValueError(
            f"model {asked.name!r} and this recipe do not fit: {error}{cure}"
        ) from error
    if asked.start:
        kind.start(net, asked.start)
    if recipe.loop.bn_decay is not None:
        for norm in net.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                norm.momentum = 1 - recipe.loop.bn_decay
    if recipe.loop.checkpointing:
        _recompute(net, asked.name)
    return net


@torch.no_grad()
def tried(task: Task, recipe: words.Recipe) -> None:
    """Show a blank image, for a model that does not take the recipe's to say so at once."""
    for size in kinds.of(recipe).sides(recipe):
        try:
            task.eval()(torch.zeros(1, 3, size, size))
        except Exception as error:  # whatever a model of timm's stumbles over
            why = str(error).partition("\n")[0]
            raise ValueError(
                f"model {recipe.model.name!r} does not take images of {size} x {size} pixels "
                f"({why}); change the sizes in augment and test, or model.options"
            ) from error


def resolved(recipe: words.Recipe, images: int) -> words.Recipe:
    """Where the recipe counts iterations: with the epochs that so many images make of them."""
    plan = recipe.schedule
    if plan.iterations is None:
        return recipe
    steps = max(images // recipe.loop.batch, 1)
    return words.change(recipe, schedule__epochs=-(-plan.iterations // steps))


def unstarted(recipe: words.Recipe) -> words.Recipe:
    """For a network whose weights come from elsewhere, or do not matter."""
    return words.change(recipe, model__start="")


def _recompute(net: nn.Module, name: str) -> None:
    enable = getattr(net, "set_grad_checkpointing", None)
    if not callable(enable):
        raise ValueError(f"loop.checkpointing: {name!r} cannot recompute its blocks; leave it off")
    enable()


def task(
    recipe: words.Recipe,
    classes: tuple[str, ...],
    teacher: nn.Module | None = None,
    notes: dict[str, Any] | None = None,
) -> Task:
    """The task with a fresh network, the same for the same seed."""
    torch.manual_seed(recipe.loop.seed)
    net = model(recipe, len(classes))
    if isinstance(recipe.task, words.Distill) and teacher is None:
        raise ValueError("task: to distill takes a teacher; see engine.teacher")
    return kinds.of(recipe).task(recipe.task, net, classes, notes or {}, teacher)


def training(recipe: words.Recipe, images: Readable, net: nn.Module, group: Group) -> Loader:
    """Training batches, augmented and mixed."""
    about, loop, kind = card(net), recipe.loop, kinds.of(recipe)
    if loop.batch % group.world:
        raise ValueError(
            f"loop.batch: {loop.batch} images do not divide over {group.world} processes; "
            f"set loop.batch={max(loop.batch // group.world, 1) * group.world}"
        )
    return Loader(
        images, kind.train(recipe.augment, about["mean"], about["std"]), batch=loop.batch,
        part=loop.part, seed=loop.seed, rank=group.rank, world=group.world,
        workers=workers(recipe.data, group), limit=recipe.data.bad,
        **kind.over_batches(recipe.augment, images),
    )  # fmt: skip


def workers(data: words.Data, group: Group) -> int:
    """How many processes read images for this one.

    Beside a CPU that trains on all its cores, more than one only gets in its way.
    """
    if data.workers is not None:
        return data.workers
    if group.device.type == "cpu":
        return 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(max((os.cpu_count() or 1) // here, 1), 16)


def evaluation(recipe: words.Recipe, images: Readable, net: nn.Module, group: Group) -> Loader:
    """Evaluation batches: every image once, over all processes."""
    return unaugmented(
        kinds.of(recipe), recipe.test, images, net, group, recipe.loop.batch,
        workers(recipe.data, group), recipe.data.bad,
    )  # fmt: skip


def unaugmented(
    kind: kinds.Kind,
    test: Any,
    images: Readable,
    net: nn.Module,
    group: Group,
    batch: int,
    workers: int = 0,
    limit: float = 1.0,
) -> Loader:
    about = card(net)
    return Loader(
        images, kind.test(test, about["mean"], about["std"]), batch=batch, rank=group.rank,
        world=group.world, workers=workers, shuffle=False, whole=False, limit=limit,
    )  # fmt: skip
