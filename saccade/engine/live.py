"""What a recipe's words have become: read off the live objects, to be held against the paper.

The rate is sampled over the whole schedule, the decay is that of the optimiser's groups, the
augmentation is the list of the transform's steps. Models are built on the meta device.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from timm.layers import DropPath
from torch import nn
from torchvision import transforms as T

from saccade.data import augment
from saccade.data.augment import Transform
from saccade.data.datasets import Images
from saccade.data.loader import Loader
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.engine.optim import Average, optimiser, schedule
from saccade.paper import Claim
from saccade.recipes.recipe import Recipe, change


class Blank(Images):
    """As many images as one likes, of which none is ever read."""

    def __init__(self, count: int, classes: int):
        self.labels = np.zeros(count, np.int64)
        self.classes = [str(i) for i in range(classes)]


@dataclass
class Live:
    """A recipe's objects, made when asked for."""

    recipe: Recipe
    classes: int = 1000
    steps: int = 10  # an epoch

    @cached_property
    def task(self) -> Any:
        with torch.device("meta"):
            return make.task(self.recipe, tuple(map(str, range(self.classes))))

    @cached_property
    def loader(self) -> Loader:
        images = Blank(self.recipe.loop.batch * self.steps, self.classes)
        return make.training(change(self.recipe, data__workers=0), images, self.task.net, Group())

    @cached_property
    def optimiser(self) -> torch.optim.Optimizer:
        return optimiser(self.task, self.recipe.optim, self.recipe.loop.batch)

    @cached_property
    def rates(self) -> np.ndarray:
        """The rate at every step of the run."""
        optim = optimiser(self.task, self.recipe.optim, self.recipe.loop.batch)
        plan, found = schedule(optim, self.recipe.schedule, len(self.loader)), []
        for step in range(self.recipe.schedule.epochs * len(self.loader)):
            plan.step_update(step)
            found.append(optim.param_groups[0]["lr"])
        return np.array(found)

    def modules(self, kind: type) -> list[Any]:
        return [m for m in self.task.modules() if isinstance(m, kind)]


def _optimiser(live: Live) -> str:
    kind = type(live.optimiser).__name__
    return "Nesterov" if live.optimiser.param_groups[0].get("nesterov") else kind


def _momentum(live: Live) -> float:
    group = live.optimiser.param_groups[0]
    return group["betas"][0] if "betas" in group else group["momentum"]


def _warmup(live: Live) -> float:
    return int(live.rates.argmax()) / len(live.loader)


def _shape(live: Live) -> str:
    """`cosine` if the rates after the peak are one, to a rounding."""
    start = int(live.rates.argmax())
    after = live.rates[start:] / live.rates[start]
    wave = (1 + np.cos(math.pi * np.arange(len(after)) / len(after))) / 2
    return "cosine" if np.allclose(after, wave, atol=1e-9) else "another"


def _augmentation(live: Live) -> str:
    loader = live.loader
    parts = augment.parts(cast(Transform, loader.transform))
    parts += augment.parts(loader.mix) if loader.mix is not None else []
    return ", ".join(parts + ["repeated"] * (loader.repeats > 1))


def _crop(live: Live) -> int:
    shown = make.evaluation(live.recipe, Blank(8, live.classes), live.task.net, Group())
    return next(
        s.size[0] for s in cast(Transform, shown.transform).steps if isinstance(s, T.CenterCrop)
    )


def _bn_decay(live: Live) -> float:
    (momentum,) = {norm.momentum for norm in live.modules(nn.BatchNorm2d)}
    return 1 - momentum


def _average(live: Live) -> float | str:
    decay = live.recipe.loop.ema
    return Average(live.task, decay).decay if decay is not None else "none"


def _undecayed(live: Live) -> str:
    """Whether everything that layers declare free of decay is in a group without any."""
    free = {p for g in live.optimiser.param_groups if g["weight_decay"] == 0 for p in g["params"]}
    names = dict(live.task.named_parameters())
    declared = live.task.no_weight_decay()
    return "yes" if declared and all(names[name] in free for name in declared) else "no"


MEASURES: dict[str, Callable[[Live], Any]] = {
    "epochs": lambda live: len(live.rates) / len(live.loader),
    "optimiser": _optimiser,
    "momentum": _momentum,
    "learning rate": lambda live: float(live.rates.max()),
    "learning rate / 256 images": lambda live: (
        float(live.rates.max()) * 256 / live.recipe.loop.batch
    ),
    "weight decay": lambda live: max(g["weight_decay"] for g in live.optimiser.param_groups),
    "warm-up epochs": _warmup,
    "schedule": _shape,
    "batch": lambda live: live.loader.batch,
    "augmentation": _augmentation,
    "label smoothing": lambda live: "yes" if live.task.smoothing > 0 else "no",
    "stochastic depth": lambda live: (
        "yes" if any(d.drop_prob > 0 for d in live.modules(DropPath)) else "no"
    ),
    "centre crop": _crop,
    "held out": lambda live: 100 * live.recipe.data.holdout,
    "BN decay": _bn_decay,
    "EMA": _average,
    "undecayed": _undecayed,
}


def measure(recipe: Recipe, claim: Claim) -> Any:
    """What the live objects say to a claim."""
    return MEASURES[claim.what](Live(recipe))
