"""Read a recipe's settings off the objects that it builds, to compare them with the paper.

The rate is sampled over the whole schedule, the decay is that of the optimiser's groups, the
augmentation is the list of the transform's steps. Models are built on the meta device.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from timm.layers import DropPath
from torch import nn
from torchvision import transforms as T
from torchvision.transforms import v2

from saccade.data.augment import Transform
from saccade.data.datasets import divided
from saccade.data.images import Images, Listing
from saccade.data.loader import Loader
from saccade.data.masks import augment as mask_augment
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.engine.optim import average, length, optimiser, schedule
from saccade.paper import Claim, above
from saccade.recipes.disk import from_plain, to_plain
from saccade.recipes.recipe import Recipe, change

SOME_STEPS = 20  # after which a moving mean is compared


class Blank(Images):
    """A data set with a number of images, none of which is ever read."""

    def __init__(self, count: int, classes: int):
        self.labels = np.zeros(count, np.int64)
        self.classes = [str(i) for i in range(classes)]

    @classmethod
    def of(cls, items: Any, labels: Any, classes: list[str]) -> "Blank":
        """As a `Listing` makes its set."""
        images = cls(len(items), len(classes))
        images.labels, images.classes = np.asarray(labels), classes
        return images


@dataclass
class Live:
    """The objects that a recipe builds, each when it is first used."""

    recipe: Recipe
    classes: int = 1000
    steps: int = 10  # an epoch

    @cached_property
    def task(self) -> Any:
        with torch.device("meta"):
            return make.task(self.recipe, tuple(map(str, range(self.classes))))

    @cached_property
    def detector(self) -> Any:
        """The network with weights, on a small backbone: for what is built above one."""
        return above.network(self.recipe)

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
        plan, rates = schedule(optim, self.recipe.schedule, len(self.loader)), []
        for step in range(length(self.recipe.schedule, len(self.loader))):
            plan.step_update(step)
            rates.append(max(group["lr"] for group in optim.param_groups))
        return np.array(rates)

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


def _rise(live: Live) -> str:
    """`linear` if the rate grows by the same at each step of the warm-up, to a rounding."""
    before = live.rates[: int(live.rates.argmax()) + 1]
    if len(before) < 3:
        return "none"
    straight = np.linspace(before[0], before[-1], len(before))
    return "linear" if np.allclose(before, straight, atol=1e-9) else "another"


def _shape(live: Live) -> str:
    """`cosine` if the rates after the peak are one, to a rounding; `poly 0.9` likewise."""
    start = int(live.rates.argmax())
    after = live.rates[start:] / live.rates[start]
    at = np.arange(len(after)) / len(after)
    if np.allclose(after, (1 + np.cos(math.pi * at)) / 2, atol=1e-9):
        return "cosine"
    half = len(after) // 2
    if 0 < after[half] < 1:
        power = round(float(np.log(after[half]) / np.log(1 - at[half])), 6)
        if np.allclose(after, (1 - at) ** power, atol=1e-9):
            return f"poly {power:g}"
    return "another"


def _augmentation(live: Live) -> str:
    loader = live.loader
    transform: Any = loader.transform
    names = transform.names + (loader.mix.names if loader.mix is not None else [])
    return ", ".join(names + ["repeated"] * (loader.repeats > 1))


def _depth_rates(live: Live) -> str:
    """How the shares of dropped paths go from the first block to the last."""
    rates = [path.drop_prob for path in live.modules(DropPath)]
    if not rates or max(rates) == 0:
        return "none"
    return "increasing" if rates == sorted(rates) and rates[0] < rates[-1] else "another"


def _steps(live: Live) -> str:
    """Where the rate falls at once, and by how much."""
    falls = [i for i in range(1, len(live.rates)) if live.rates[i] < 0.9 * live.rates[i - 1]]
    factors = {f"{live.rates[i] / live.rates[i - 1]:g}" for i in falls}
    after = " and ".join(f"{i / len(live.loader):g}" for i in falls)
    return f"x{', '.join(sorted(factors))} after {after}"


def _backbone_rate(live: Live) -> float:
    """The largest rate that the backbone learns with."""
    own = {id(p) for p in live.task.net.backbone.parameters()}
    groups = [g for g in live.optimiser.param_groups if {id(p) for p in g["params"]} & own]
    return float(live.rates.max()) * max(g["lr_scale"] for g in groups)


def _step(live: Live, word: str) -> Any:
    """What a training image goes through, by a word that only this step has."""
    steps = cast(Any, live.loader.transform).steps
    return getattr(next(step for step in steps if hasattr(step, word)), word)


def _short(live: Live) -> int | str:
    sides = _step(live, "short")
    return f"{min(sides)} to {max(sides)}" if len(sides) > 1 else sides[0]


def _crop(live: Live) -> int:
    loader = make.evaluation(live.recipe, Blank(8, live.classes), live.task.net, Group())
    return next(
        s.size[0] for s in cast(Transform, loader.transform).steps if isinstance(s, T.CenterCrop)
    )


def _mask_crop(live: Live) -> int:
    transform: Any = live.loader.transform
    return next(step.side for step in transform.steps if isinstance(step, mask_augment.MaskCrop))


def _short_side(live: Live) -> int:
    """Of an image of 300 x 400 pixels as an evaluation shows it."""
    loader: Any = make.evaluation(live.recipe, Blank(8, live.classes), live.task.net, Group())
    return min(loader.transform(Image.new("RGB", (400, 300))).shape[1:])


def _loss(live: Live) -> str:
    """The terms that are minimised, of a task that takes no labels."""
    blank = torch.zeros(1, 3, 64, 64, device="meta")
    return ", ".join(live.task.loss(live.task(blank), {}))


def _side(live: Live) -> int:
    transform: Any = live.loader.transform
    image = transform(Image.new("RGB", (400, 300)), 0)
    return (image if isinstance(image, torch.Tensor) else image[0]).shape[-1]


def _held_out(live: Live) -> float:
    """Share of the training images to choose by, of a set that brings validation images."""
    names = ["cat", "dog"] * 500
    listing = Listing("a set", [*enumerate(names)], [*enumerate(names)], Blank.of)
    splits = divided(listing, live.recipe.data, live.recipe.loop.seed)
    return 100 * len(splits.val) / 1000 if splits.final is not None else 0.0


def _bn_decay(live: Live) -> float:
    """The share of its value that a running mean keeps at each step, from some steps of ones."""
    decays = set()
    for norm in live.modules(nn.BatchNorm2d):
        own = nn.BatchNorm2d(1, momentum=norm.momentum)
        for _ in range(SOME_STEPS):
            own(torch.ones(1, 1, 2, 2))
        decays.add(_share_that_stays(cast(torch.Tensor, own.running_mean).item()))
    (decay,) = decays
    return decay


def _average(live: Live) -> float | str:
    """The same of a weight that jumps from 0 to 1 and stays there."""
    weight = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(weight.weight)
    moving = average(weight, live.recipe.loop)
    if moving is None:
        return "none"
    nn.init.ones_(weight.weight)
    for _ in range(SOME_STEPS):
        moving.update(weight)
    return _share_that_stays(moving.values["weight"].item())


def _share_that_stays(reached: float) -> float:
    """The share that stays at each step, of a mean that came this far from 0 to 1 in some steps."""
    return (1 - reached) ** (1 / SOME_STEPS)


def _undecayed(live: Live) -> str:
    """Whether all parameters that layers declare `undecayed` are in a group without decay."""
    free = {p for g in live.optimiser.param_groups if g["weight_decay"] == 0 for p in g["params"]}
    names = dict(live.task.named_parameters())
    undecayed_names = live.task.no_weight_decay()
    return (
        "yes" if undecayed_names and all(names[name] in free for name in undecayed_names) else "no"
    )


def _part(live: Live, i: int, word: str) -> Any:
    """Of the part that DETR cuts out: what its resize (0) or its crop (1) is set to."""
    steps = cast(Any, live.loader.transform).steps
    return getattr(next(s for s in steps if isinstance(s, v2.RandomApply)).transforms[i], word)


def _norms_of_layers(live: Live) -> str:
    """What stands before QnA in an auto-encoder's layers, down and up."""
    (word,) = {type(m.norm).__name__ for m in (*live.task.net.encoder, *live.task.net.decoder)}
    return word


def _levels(live: Live, up: bool) -> str:
    """How often a map's side is halved or doubled, and by what."""
    net, sides = live.task.net, []
    layers = net.decoder if up else net.encoder
    x = torch.empty(1, layers[0].norm.weight.shape[0], 64, 64, device="meta")
    for layer in layers:
        before, x = x.shape[2], layer(x)
        sides.append((x.shape[2] / before, f"{layer.mix.window}x{layer.mix.window} QnA"))
    ((factor, word),) = set(sides)
    return f"{len(sides)} of {word}" if factor == (2 if up else 0.5) else "another"


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
    "warm-up": _rise,
    "rate of stochastic depth": _depth_rates,
    "backbone begins with": lambda live: live.recipe.model.start or "what --start names",
    "norm before QnA": _norms_of_layers,
    "schedule": _shape,
    "batch": lambda live: live.loader.batch,
    "augmentation": _augmentation,
    "label smoothing": lambda live: "yes" if live.task.smoothing > 0 else "no",
    "stochastic depth": lambda live: (
        "yes" if any(d.drop_prob > 0 for d in live.modules(DropPath)) else "no"
    ),
    "drop path": lambda live: max(d.drop_prob for d in live.modules(DropPath)),
    "centre crop": _crop,
    "iterations": lambda live: len(live.rates),
    "random crop": _mask_crop,
    "test short side": _short_side,
    "loss": _loss,
    "image side": _side,
    "layers down": lambda live: _levels(live, up=False),
    "layers up": lambda live: _levels(live, up=True),
    "queries of a layer down": lambda live: max(m.mix.queries for m in live.task.net.encoder),
    "rate that the warm-up begins at": lambda live: float(live.rates[0]),
    "held out": _held_out,
    "BN decay": _bn_decay,
    "EMA": _average,
    "positions and scales undecayed": _undecayed,
    "steps": _steps,
    "backbone rate": _backbone_rate,
    "short side": _short,
    "long side": lambda live: _step(live, "long"),
    "crop": lambda live: _step(live, "size"),
    "flip": lambda live: 100 * _step(live, "p"),
    "new layers": lambda live: above.initialisation(live.detector),
    "crop from short side": lambda live: "{} to {}".format(*_part(live, 0, "short")[::2]),
    "sides of the crop": lambda live: f"{_part(live, 1, 'least')} to {_part(live, 1, 'size')}",
    "3x3 convolutions above the backbone": lambda live: above.convolutions(live.detector),
    "attention's width": lambda live: above.width(live.detector),
    "attention's k": lambda live: above.reach(live.detector),
    "attention's heads": lambda live: above.heads(live.detector),
    "where a convolution was strided": lambda live: above.strided(live.detector),
    "heads share weights across levels": lambda live: above.shared(live.detector),
    "std of the heads' W_V": lambda live: above.spread_of_values(live.detector),
    "end of a head": lambda live: above.end(live.detector),
}


def measure(recipe: Recipe, claim: Claim) -> Any:
    """The value of a claim, read off the live objects."""
    return MEASURES[claim.what](_live(json.dumps(to_plain(recipe))))


@lru_cache(maxsize=1)
def _live(plain: str) -> Live:
    """Claims come recipe by recipe, and share its objects."""
    return Live(from_plain(json.loads(plain)))
