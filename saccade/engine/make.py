"""From a recipe's words to live objects, one function a word."""

import os
from typing import Any

import timm
import torch
from torch import nn

from saccade.data import augment
from saccade.data.datasets import Images
from saccade.data.loader import Loader
from saccade.engine.distributed import Group
from saccade.models import zoo
from saccade.models.saved import card, load
from saccade.recipes import recipe as words
from saccade.tasks.classify import Classify, Distill
from saccade.tasks.task import Task
from saccade.words import nearest

TAKEN = {
    "num_classes": "comes from the images",
    "features_only": "a classifier is trained",
}


def model(recipe: words.Recipe, classes: int) -> nn.Module:
    """The network by name, of saccade or timm, with weights to start from if the recipe asks."""
    asked = recipe.model
    if not timm.is_model(asked.name):
        close = nearest(asked.name, [*zoo.VARIANTS, *timm.list_models()])
        raise ValueError(f"no model named {asked.name!r}; did you mean {close!r}?")
    for taken, why in TAKEN.items():
        if taken in asked.options:
            raise ValueError(f"model.options.{taken}: {why}; leave it out")
    settings: dict[str, Any] = {"num_classes": classes, **asked.options}
    if asked.drop_path is not None:
        settings["drop_path_rate"] = asked.drop_path
    try:
        net: Any = _built(asked.name, settings)
    except TypeError as error:
        cure = "; set model.drop_path=null" if "drop_path_rate" in str(error) else ""
        raise ValueError(
            f"model {asked.name!r} and this recipe do not fit: {error}{cure}"
        ) from error
    if not isinstance(net, zoo.Classifier):
        net.options = dict(asked.options)  # what `save` needs to build it again
    if asked.start:
        start(net, asked.start)
    if recipe.loop.bn_decay is not None:
        for norm in net.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                norm.momentum = 1 - recipe.loop.bn_decay
    if recipe.loop.checkpointing:
        _recompute(net, asked.name)
    return net


def _built(name: str, settings: dict[str, Any]) -> nn.Module:
    """timm's model; one that knows no dropped paths drops none."""
    try:
        return timm.create_model(name, **settings)
    except TypeError as error:
        if settings.get("drop_path_rate") != 0 or "drop_path_rate" not in str(error):
            raise
    return timm.create_model(name, **{k: v for k, v in settings.items() if k != "drop_path_rate"})


@torch.no_grad()
def tried(task: Task, recipe: words.Recipe) -> None:
    """Show a blank image, for a model that does not take the recipe's to say so at once."""
    for size in (recipe.augment.size, recipe.test.size):
        try:
            task.eval()(torch.zeros(1, 3, size, size))
        except Exception as error:  # whatever a model of timm's stumbles over
            why = str(error).partition("\n")[0]
            raise ValueError(
                f"model {recipe.model.name!r} does not take images of {size} x {size} pixels "
                f"({why}); change augment.size and test.size, or model.options"
            ) from error


def unstarted(recipe: words.Recipe) -> words.Recipe:
    """For a network whose weights come from elsewhere, or do not matter."""
    return words.change(recipe, model__start="")


def _recompute(net: nn.Module, name: str) -> None:
    enable = getattr(net, "set_grad_checkpointing", None)
    if not callable(enable):
        raise ValueError(f"loop.checkpointing: {name!r} cannot recompute its blocks; leave it off")
    enable()


def start(net: nn.Module, source: str) -> None:
    """Take all weights but the classifier's from a saved model or a run."""
    other = load(source)
    mine, theirs = card(net)["architecture"], card(other)["architecture"]
    if mine != theirs:
        raise ValueError(
            f"model.start: {source!r} is a {theirs!r} and the recipe trains a {mine!r}; "
            f"set model.name={theirs}"
        )
    head = card(net)["classifier"]
    weights = {k: v for k, v in other.state_dict().items() if not k.startswith(head)}
    missing, unknown = net.load_state_dict(weights, strict=False)
    if unknown or any(not name.startswith(head) for name in missing):
        raise ValueError(f"model.start: {source!r} was built with other options than the recipe's")


def task(recipe: words.Recipe, classes: tuple[str, ...], teacher: nn.Module | None = None) -> Task:
    """The task with a fresh network, the same for the same seed."""
    torch.manual_seed(recipe.loop.seed)
    net = model(recipe, len(classes))
    asked = recipe.task
    if isinstance(asked, words.Distill):
        if teacher is None:
            raise ValueError("task: to distill takes a teacher; see engine.teacher")
        return Distill(
            net, classes, teacher, smoothing=asked.smoothing, weight=asked.weight,
            temperature=asked.temperature,
        )  # fmt: skip
    return Classify(net, classes, smoothing=asked.smoothing)


def training(recipe: words.Recipe, images: Images, net: nn.Module, group: Group) -> Loader:
    """Training batches, augmented and mixed."""
    about, loop = card(net), recipe.loop
    if loop.batch % group.world:
        raise ValueError(
            f"loop.batch: {loop.batch} images do not divide over {group.world} processes; "
            f"set loop.batch={max(loop.batch // group.world, 1) * group.world}"
        )
    mixes = recipe.augment.mixup > 0 or recipe.augment.cutmix > 0
    return Loader(
        images, augment.train(recipe.augment, about["mean"], about["std"]), batch=loop.batch,
        part=loop.part, seed=loop.seed, rank=group.rank, world=group.world,
        workers=workers(recipe, group), repeats=recipe.augment.repeats, limit=recipe.data.bad,
        mix=augment.Mix(recipe.augment) if mixes else None,
    )  # fmt: skip


def workers(recipe: words.Recipe, group: Group) -> int:
    """How many processes read images for this one.

    Beside a CPU that trains on all its cores, more than one only gets in its way.
    """
    if recipe.data.workers is not None:
        return recipe.data.workers
    if group.device.type == "cpu":
        return 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(max((os.cpu_count() or 1) // here, 1), 16)


def evaluation(recipe: words.Recipe, images: Images, net: nn.Module, group: Group) -> Loader:
    """Evaluation batches: every image once, over all processes."""
    return unaugmented(
        recipe.test, images, net, group, recipe.loop.batch, workers(recipe, group), recipe.data.bad
    )


def unaugmented(
    test: words.Test,
    images: Images,
    net: nn.Module,
    group: Group,
    batch: int,
    workers: int = 0,
    limit: float = 1.0,
) -> Loader:
    about = card(net)
    return Loader(
        images, augment.test(test, about["mean"], about["std"]), batch=batch, rank=group.rank,
        world=group.world, workers=workers, shuffle=False, whole=False, limit=limit,
    )  # fmt: skip
