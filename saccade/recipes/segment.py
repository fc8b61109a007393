"""A class for every pixel: settings, and a recipe for small sets and machines."""

import math
from dataclasses import dataclass

from saccade.recipes.bounds import COUNT, SHARE, SIDE, SOME, hold
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Loop, Model, Optim, Recipe, Schedule


@dataclass(frozen=True, kw_only=True)
class MaskAugment(AugmentSettings):
    """What happens to a training image and its mask, in this order."""

    short: int = 512
    """The short side is resized to this, times a factor from `scale`."""
    long: int = 2048
    """The long side becomes no longer than this, times that factor."""
    scale: tuple[float, float] = (0.5, 2.0)
    crop: int = 512
    """Side of the random square that is cut out."""
    single: float = 1.0
    """A square in which one class has a larger share than this is drawn again, a few times."""
    flip: float = 0.5
    jitter: float = 0.0
    """Strength of colour jitter (brightness, contrast, saturation)."""

    def __post_init__(self) -> None:
        hold(self, short=SIDE, long=SIDE, crop=(32, 8192), single=SHARE, flip=SHARE)
        hold(self, jitter=COUNT)


@dataclass(frozen=True, kw_only=True)
class MaskTest(TestSettings):
    """What happens to an image whose pixels are told apart: a resize, the aspect kept.

    Figures are counted at the image's own size.
    """

    short: int = 512
    long: int = 2048

    def __post_init__(self) -> None:
        hold(self, short=SIDE, long=SIDE)


@dataclass(frozen=True, kw_only=True)
class Segment(TaskSettings):
    """Task: a class for every pixel, by SemanticFPN, and cross-entropy."""

    dim: int = 256
    """Channels of the pyramid."""
    inner: int = 128
    """Channels of the towers that bring each level to a quarter of the image's size."""
    window: int | None = None
    """Side of the windows through which an evaluated image is looked at; the whole if None."""
    overlap: float = 0.5
    """Share of a window that the next one sees again, at least."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, inner=SOME, window=(64, math.inf), overlap=(0, 0.9))


SEGMENT = Recipe(
    about="""A small set of images with masks, on a laptop's CPU: about ten minutes for 300 of them.
    saccade train segment --data FOLDER; images/ and masks/ with classes.json, or ADE20K's layout.
    The backbone begins with weights of the package, where its model has some; with your own:
    --start RUN; without any: --set model.start=""",
    model=Model(name="linglo_cifar", drop_path=0.0),
    task=Segment(dim=64, inner=64),
    augment=MaskAugment(short=192, long=384, scale=(0.75, 1.5), crop=160, jitter=0.2),
    test=MaskTest(short=192, long=384),
    optim=Optim(name="muon", lr=0.01, momentum=0.95, weight_decay=0.05),
    schedule=Schedule(epochs=24, warmup=1, shape="poly", power=0.9),
    loop=Loop(batch=8, evaluate_every=4),
)

RECIPES = {"segment": SEGMENT}
CLAIMS = {}
