"""More pixels than a picture has: settings, and a recipe for small sets and machines."""

import math
from dataclasses import dataclass
from typing import Literal

from saccade.recipes.bounds import SHARE, SOME, hold
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Loop, Model, Optim, Recipe, Schedule


@dataclass(frozen=True, kw_only=True)
class PatchAugment(AugmentSettings):
    """What happens to a training image: a patch of its own pixels is cut out, never resized."""

    size: int = 96
    """Side of the patch that the network should give back."""
    flip: float = 0.5
    """Share of the patches that are mirrored, left to right and, independently, top to bottom."""
    turn: float = 0.5
    """Share of the patches that are turned by a right angle."""

    def __post_init__(self) -> None:
        hold(self, size=(32, 8192), flip=SHARE, turn=SHARE)


@dataclass(frozen=True, kw_only=True)
class WholeTest(TestSettings):
    """What happens to an image that is evaluated: nothing, or its centre is cut out."""

    most: int | None = None
    """Longest side that is evaluated; all of the image if None."""

    def __post_init__(self) -> None:
        hold(self, most=(32, math.inf))


@dataclass(frozen=True, kw_only=True)
class Upscale(TaskSettings):
    """Task: the picture that a smaller copy of it was made from, and L1 loss."""

    factor: Literal[2, 3, 4] = 2
    """How many times as many pixels a side."""
    body: Literal["linglo", "qna", "conv"] = "linglo"
    """What the blocks are: key-only attention with RP-CPE, learned queries, or convolutions."""
    up: Literal["shuffle", "qna"] = "shuffle"
    """Where the new pixels come from: a convolution's channels, or QnA's up-sampler."""
    dim: int = 32
    """Channels of the maps."""
    depth: int = 6
    """Blocks."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, depth=SOME)


UPSCALE = Recipe(
    about="""Pictures with twice the pixels a side (super-resolution), on a CPU.
    saccade train upscale --data FOLDER, any sharp pictures; then saccade upscale PICTURES.
    Four times: --set task.factor=4; learned queries: --set task.body=qna task.up=qna.""",
    model=Model(name="upscaler", drop_path=0.0),
    task=Upscale(),
    augment=PatchAugment(),
    test=WholeTest(),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=0.0, clip=1.0),
    schedule=Schedule(epochs=20, warmup=1),
    loop=Loop(batch=16, evaluate_every=5),
)

RECIPES = {"upscale": UPSCALE}
CLAIMS = {}
