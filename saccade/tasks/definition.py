"""What a task declares about itself, in one place: nothing else in saccade asks which task it is.

    TASK = TaskDefinition(name="classify", find=datasets.find, network=build, ...)
    saccade.tasks.register(TASK)

From then on recipes with the task's settings train, resume, evaluate, report and export.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from PIL import Image
from torch import nn

from saccade.data.datasets import Splits
from saccade.data.reader import Batch, Readable
from saccade.models import zoo
from saccade.models.saved import load
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Data, Recipe
from saccade.spelling import nearest
from saccade.tasks.answers import PictureAnswer, value_answer
from saccade.tasks.figures import Figure
from saccade.tasks.task import Task

Colour = Sequence[float]
Transform = Callable[..., Any]  # (image, target) to (tensor, target); (image) to a tensor


@dataclass(frozen=True)
class Preparation:
    """What a task may use before its first step: images, files, and the other processes."""

    recipe: Recipe
    folder: Path
    """The run's folder."""
    classes: tuple[str, ...]
    splits: Splits
    net: nn.Module
    """The network that will be trained."""
    device: torch.device
    batches: Callable[[Readable, Any], Iterator[Batch]]
    """Batches of images as an evaluation with these test settings would show them."""
    make_once: Callable[[Path, Callable[[], None]], None]
    """Let the first process make a file that is not there yet, while the others wait."""
    say: Callable[[str], None]
    """Print a sentence."""


class Untrained(NamedTuple):
    """A network with fresh weights, and the settings that its task and its images take."""

    net: Any
    settings: TaskSettings
    test: TestSettings


def check_timm_name(name: str) -> None:
    """Refuse a network's name that neither saccade nor timm knows, with the nearest."""
    if not timm.is_model(name):
        close = nearest(name, [*zoo.VARIANTS, *timm.list_models()])
        raise ValueError(f"no model named {name!r}; did you mean {close!r}?")


def only_model(model: str, task: str, hint: str) -> Callable[[str], None]:
    """A check of the model's name for a task that has one network."""

    def check(name: str) -> None:
        if name != model:
            raise ValueError(f"{task} trains the model {model!r}, got {name!r}; {hint}")

    return check


def square_sides(recipe: Recipe) -> tuple[int, int]:
    """The sides of square training and test images, as `Augment` and `Test` have them."""
    train: Any = recipe.augment
    test: Any = recipe.test
    return train.size, test.size


def start_backbone(net: Any, source: str) -> None:
    """Take the backbone's weights from a saved model or a run, which may be of another task."""
    try:
        net.backbone_from(load(source))
    except ValueError as error:
        raise ValueError(f"model.start: {source!r}: {error}") from error


def load_alike(net: Any, source: str, apart_from: Sequence[str] = ()) -> nn.Module:
    """A saved network that was built with the same arguments, but for those named."""
    other: Any = load(source)
    mine, theirs = (dict(getattr(one, "arguments", {})) for one in (net, other))
    for name in apart_from:
        mine.pop(name, None), theirs.pop(name, None)
    if mine != theirs:
        raise ValueError(f"model.start: {source!r} is another model: {theirs}, not {mine}")
    return other


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """All that saccade needs to know of a task. The fields with defaults may be left out."""

    name: str
    """One word: `classify`."""
    settings: tuple[type[TaskSettings], ...]
    """The settings classes of a recipe's `task` group."""
    augment: type[AugmentSettings]
    """The settings class of its `augment` group."""
    test: type[TestSettings]
    """The settings class of its `test` group."""

    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Recipes that `saccade train NAME` should know."""

    # -- data --------------------------------------------------------------------------------

    data_hint: str
    """What --data should be, in a few words."""
    find: Callable[[str, Data, int], Splits]
    """(path, data settings, seed): the training and the validation set at a path."""
    every: Callable[[str, list[str]], Readable]
    """(path, classes): all images at a path on which a model with these classes can be tested."""
    align: Callable[[Any, list[str]], Readable]
    """(images, classes): the images, with labels in the order of a model's classes."""
    train_transform: Callable[[Any, Colour, Colour], Transform]
    """(augment settings, mean, std): what is done to a training image."""
    test_transform: Callable[[Any, Colour, Colour], Transform]
    """(test settings, mean, std): what is done to an evaluated image."""
    batching: Callable[[Any, Any], dict[str, Any]] = lambda augment, images: {}
    """(augment settings, images): options of the training Loader, such as `mix` or `like`."""

    # -- network and loss --------------------------------------------------------------------

    network: Callable[[Recipe, int, dict[str, Any]], nn.Module]
    """(recipe, number of classes, options): the network; options are timm's."""
    task: Callable[[Any, Any, tuple[str, ...], dict[str, Any]], Task]
    """(settings, network, classes, notes): the task; notes are those of the Splits from `find`."""
    check_model: Callable[[str], None] = check_timm_name
    """Refuse a model's name that the task cannot use."""
    example_sides: Callable[[Recipe], Sequence[int]] = square_sides
    """Sides of blank images that the network should take; they are tried before a run."""
    start: Callable[[Any, str], None] = start_backbone
    """(network, source): take weights from a saved model (`model.start`)."""
    builders: Mapping[str, Callable[..., nn.Module]] = field(default_factory=dict)
    """Functions that build networks other than timm's, by `describe()["kind"]`."""

    # -- before the first step ---------------------------------------------------------------

    prepare: Callable[[Preparation, Any], None] | None = None
    """(preparation, task): make what the task needs, such as a teacher."""
    baseline: Callable[[Preparation], dict[str, Any]] | None = None
    """The `name` and the figures of a simple model to compare with (`loop.baseline`)."""

    # -- afterwards --------------------------------------------------------------------------

    figures: Mapping[str, Figure] = field(default_factory=dict)
    """How the metric's figures are written."""
    command: str = ""
    """The command that uses a trained model on pictures; none if empty."""
    example: Callable[[Any, Image.Image, Any, Any], Image.Image] | None = None
    """(task, picture, target, answer): a drawing of the prediction beside the truth, for a report;
    the picture alone if None."""
    whole: Callable[[Any], Any] = lambda test: test
    """(test settings): the settings for single pictures, outside of an evaluation."""
    hub_tag: str = "image-feature-extraction"
    """The Hugging Face hub's word for such models."""
    untrained: Callable[[str], Untrained | None] = lambda name: None
    """A network with fresh weights by its name in a paper; None if the task knows no such name."""
    views: Callable[[Any], Task] | None = None
    """(task): one that looks at several views of every image; None if there is no such thing."""
    answer: Callable[[Any, Any, Image.Image, str], PictureAnswer] = value_answer
    """(task, prediction, picture, name): a prediction of `task.predict` as an answer for people."""

    def viewing(self, task: Any) -> Task:
        """The task as one that looks at several views of every image (`--tta`)."""
        if self.views is None:
            raise ValueError(
                f"--tta: {self.name!r} cannot put the answers about several views together; "
                f"leave it off"
            )
        return self.views(task).eval()
