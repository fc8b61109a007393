"""A class for every pixel: settings, and recipes for small sets and machines."""

import math
from dataclasses import dataclass

from saccade.recipes.bounds import COUNT, SHARE, SIDE, SOME, hold
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Loop, Model, Optim, Recipe, Schedule, change


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
    """What happens to an evaluated image: a resize, the aspect ratio kept.

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
    balance: float = 0.0
    """Weight of rare classes in the loss: (1 / share of the training pixels) to this power, with a
    mean of 1 over pixels, and at most 10 times that mean. 0: every pixel the same; 0.5 is usual."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, inner=SOME, window=(64, math.inf), overlap=(0, 0.9), balance=(0, 1))


@dataclass(frozen=True, kw_only=True)
class UperNet(TaskSettings):
    """Task: a class for every pixel, by UperNet, and cross-entropy of two heads."""

    dim: int = 512
    """Channels of the pyramid."""
    cells: tuple[int, ...] = (1, 2, 3, 6)
    """Sides of the grids over which context is pooled."""
    auxiliary: int = 256
    """Channels of a further head in training, on the map before the last; none if 0."""
    share: float = 0.4
    """Weight of that head's loss."""
    window: int | None = None
    """Side of the windows through which an evaluated image is looked at; the whole if None."""
    overlap: float = 0.5
    """Share of a window that the next one sees again, at least."""
    balance: float = 0.0
    """Weight of rare classes in the loss, as of `Segment`."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, auxiliary=COUNT, share=COUNT, window=(64, math.inf))
        hold(self, overlap=(0, 0.9), balance=(0, 1))
        if not self.cells or not all(1 <= n <= 64 for n in self.cells):
            raise ValueError(
                f"task.cells: sides of grids from 1 to 64, got {self.cells}; try (1, 2, 3, 6)"
            )


@dataclass(frozen=True, kw_only=True)
class Mask2Former(TaskSettings):
    """Task: a class for every pixel, by Mask2Former's queries, which are matched with the truth."""

    dim: int = 256
    """Channels of pixels and queries."""
    queries: int = 100
    """Masks an image."""
    encoder: int = 6
    """Layers of the pixels' deformable encoder."""
    decoder: int = 9
    """Layers of the queries' decoder."""
    heads: int = 8
    hidden: int = 2048
    """Width of the decoder's feed-forward layers; the encoder's is half of it."""
    points: int = 12544
    """Places of an image at which masks are compared."""
    nothing: float = 0.1
    """Weight of queries that are matched with nothing."""
    window: int | None = None
    """Side of the windows through which an evaluated image is looked at; the whole if None."""
    overlap: float = 0.5
    """Share of a window that the next one sees again, at least."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, queries=SOME, encoder=SOME, decoder=SOME, heads=SOME, hidden=SOME)
        hold(self, points=SOME, nothing=COUNT, window=(64, math.inf), overlap=(0, 0.9))


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

SEGMENT_UPERNET = change(
    SEGMENT,
    about="""As `segment`, by UperNet: context pooled over grids, then a pyramid.
    pip install 'saccade[detection]'; saccade train segment_upernet --data FOLDER.""",
    task=UperNet(dim=64, auxiliary=32),
)

SEGMENT_MASK2FORMER = change(
    SEGMENT,
    about="""As `segment`, by Mask2Former: queries that each give a class and a mask.
    pip install 'saccade[detection]'; saccade train segment_mask2former --data FOLDER.
    It learns slower than the others: give it a larger set, or more epochs.""",
    model=Model(name="linglo_nano", drop_path=0.0),  # three maps of stride 4 and coarser
    task=Mask2Former(dim=64, queries=50, encoder=2, decoder=3, heads=4, hidden=256, points=4096),
    optim=Optim(name="adamw", lr=5e-4, weight_decay=0.05, clip=0.1),
)

RECIPES = {
    "segment": SEGMENT,
    "segment_upernet": SEGMENT_UPERNET,
    "segment_mask2former": SEGMENT_MASK2FORMER,
}
CLAIMS = {}
