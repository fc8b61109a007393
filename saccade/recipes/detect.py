"""Boxes: settings, and detectors for a small set on a small machine."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from saccade.recipes.bounds import COUNT, SHARE, SIDE, SOME, hold, ordered
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule, change

Layers = Literal["conv", "attention"]


@dataclass(frozen=True, kw_only=True)
class BoxAugment(AugmentSettings):
    """What happens to a training image and its boxes, in this order."""

    part: float = 0.0
    """Share of the images of which a random part is cut out before anything else, as DETR does."""
    part_short: tuple[int, ...] = (400, 500, 600)
    """The short side of these images is first resized to one of these."""
    part_sides: tuple[int, int] = (384, 600)
    """Height and width of the part are drawn from between these two."""
    short: tuple[int, ...] = (800,)
    """Sides that the short side is resized to, one drawn for each image."""
    long: int = 1333
    """The long side becomes no longer than this."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Multiscale jitter: a factor drawn for each image, on top of that size."""
    crop: int | None = None
    """A random part of at most this side is cut out; none if None."""
    flip: float = 0.5
    jitter: float = 0.0
    """Strength of colour jitter (brightness, contrast, saturation)."""
    hsv: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """By how much hue (of 1 round), saturation and brightness change at most."""
    mosaic: float = 0.0
    """Share of the images that are put together of four, each cut to its quarter."""
    mixup: float = 0.0
    """Share of the images that another is laid over, half transparent."""
    together: int | None = None
    """Mosaic and mixup are done in the first so many epochs; in all if None."""
    rotate: float = 0.0
    """Turn by up to so many degrees, both ways."""
    shift: float = 0.0
    """Shift by up to this share of the sides."""
    zoom: tuple[float, float] = (1.0, 1.0)
    """Make larger by a factor drawn from this range, the canvas as it was."""
    shear: float = 0.0
    """Shear by up to so many degrees."""
    perspective: float = 0.0
    """By how much a side's end may be nearer than its middle: 0.2 is a lot."""
    rare: float = 0.0
    """Images with a class that fewer than this share of the images hold come more often, as LVIS
    has it: by the root of this share over that."""
    alike: bool = False
    """Take wide and tall images into steps of their own, so that less is padding."""

    def __post_init__(self) -> None:
        hold(self, long=SIDE, crop=SIDE, flip=SHARE, jitter=COUNT, part=SHARE)
        hold(self, mosaic=SHARE, mixup=SHARE, together=COUNT, rotate=(0, 180), shift=SHARE)
        hold(self, shear=(0, 80), perspective=(0, 0.5), rare=SHARE)
        ordered(self, "zoom")
        if not (len(self.hsv) == 3 and 0 <= min(self.hsv) and self.hsv[0] <= 0.5):
            raise ValueError(
                f"boxaugment.hsv: three numbers of 0 or more, the hue 0.5 at most, "
                f"got {list(self.hsv)}; try [0.015,0.7,0.4]"
            )

    @property
    def warped(self) -> bool:
        """Whether images are turned, shifted, sized, sheared or seen from the side."""
        moved = self.rotate or self.shift or self.shear or self.perspective
        return bool(moved) or self.zoom != (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class BoxTest(TestSettings):
    """What happens to an evaluated image: a resize, the aspect ratio kept."""

    short: int = 800
    long: int = 1333

    def __post_init__(self) -> None:
        hold(self, short=SIDE, long=SIDE)


@dataclass(frozen=True, kw_only=True)
class RetinaNet(TaskSettings):
    """Task: boxes, by heads that run over every level of a feature pyramid, and focal loss."""

    fpn: Layers = "conv"
    heads: Layers = "conv"
    coarse: Literal["C5", "P5"] = "C5"
    """What P6 and P7 are made from: the backbone's last map, or the pyramid's."""
    norm: bool = False
    """BatchNorm in the heads, one for each level."""
    dim: int = 256
    """Channels of the pyramid and the heads."""
    depth: int = 4
    """Layers of a head before its last."""
    border: Literal["mask", "zero"] = "mask"
    """What attention in pyramid and heads sees beyond a map's edge: nothing, or zeros."""
    init: Literal["xavier", "retinanet"] = "xavier"
    """How pyramid and heads are drawn; retinanet: N(0, 0.01) in the heads."""
    levels_norm: bool = False
    """BatchNorm on the levels of the pyramid."""
    locality: float = 0.0
    """How narrowly each head of attention in pyramid and heads looks at first, at a place of its
    own beside the pixel; 0: as the paper has it, a blur."""
    maps: int | None = None
    """On how many of the backbone's last maps the pyramid stands, 1 to 3; of its five levels, the
    others are coarser. None: three, or fewer where these are finer than a stride of 4."""
    scales: int = 3
    """Anchors a place and shape (1:2, 1:1, 2:1), a third of an octave apart for 3."""
    least: float = 4.0
    """Side of the smallest anchor of a level, in strides of that level."""
    alpha: float = 0.25
    """Weight of objects in the focal loss, against 1 - alpha of the background."""
    gamma: float = 2.0
    """Exponent of the focal loss: how little it weighs examples that are classified well
    already."""
    score: float = 0.05
    """Boxes below this are not kept."""
    overlap: float = 0.5
    """Of two boxes of a class that overlap by more, the surer one is kept."""
    most: int = 100
    """Boxes an image."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, depth=COUNT, scales=SOME, alpha=SHARE, gamma=COUNT, score=SHARE)
        hold(self, overlap=SHARE, most=SOME, least=(0.1, math.inf), locality=COUNT)
        hold(self, maps=(1, 3))

    @classmethod
    def as_written(cls, fields: dict[str, Any]) -> dict[str, Any]:
        fields = {"maps": 3, **fields}
        attention = "attention" in (fields.get("fpn"), fields.get("heads"))
        return {"border": "zero", **fields} if attention else fields


@dataclass(frozen=True, kw_only=True)
class Detr(TaskSettings):
    """Task: boxes as a set, by a transformer's queries over the last map, matched one to one."""

    queries: int = 100
    dim: int = 256
    encoder: int = 6
    """Layers."""
    decoder: int = 6
    heads: int = 8
    hidden: int = 2048
    """Channels inside the transformer's feed-forward layers."""
    dropout: float = 0.1
    attention_dropout: float = 0.0
    """Of the weights of attention."""
    carry: Literal["normed", "raw"] = "normed"
    """What a layer of the decoder hands to the next, beside the normed state that boxes are read
    from: that, as transformers does, or the state before the norm, as DETR's authors do."""
    auxiliary: bool = True
    """Apply the loss to the boxes of every layer of the decoder, not only to those of the last."""
    nothing: float = 0.1
    """Weight of queries that find nothing, in the loss of classes."""
    score: float = 0.0
    """Boxes below this are not kept."""

    def __post_init__(self) -> None:
        hold(self, queries=SOME, dim=SOME, dropout=SHARE, nothing=SHARE, score=SHARE)
        hold(self, attention_dropout=SHARE)
        hold(self, encoder=COUNT, decoder=SOME, heads=SOME, hidden=SOME)


@dataclass(frozen=True, kw_only=True)
class RTDetr(TaskSettings):
    """Task: boxes as a set, by RT-DETR: queries begin where an encoder takes places for objects,
    look at a few points around their boxes, and learn from shifted true boxes too (denoising)."""

    queries: int = 300
    dim: int = 256
    """Channels of encoder and decoder."""
    levels: int = 3
    """How many of the backbone's last maps it looks at."""
    decoder: int = 6
    """Layers."""
    heads: int = 8
    hidden: int = 1024
    """Channels inside the transformer's feed-forward layers."""
    points: int = 4
    """Places that a query looks at, a head and level."""
    expand: float = 1.0
    """Width of the encoder's convolutions, as a share of its channels."""
    denoising: int = 100
    """Denoising queries per image, about: as many shifted copies of each true box as fit into this
    number, which the decoder should correct, and as many distant ones, which it should reject. 0:
    none."""
    label_noise: float = 0.5
    """Half of this share of them get a random class."""
    box_noise: float = 1.0
    """How far their corners are moved, in halves of the box's sides; far ones up to twice that."""
    frozen: bool = False
    """BatchNorm in the backbone as it was trained, for very small batches."""
    score: float = 0.0
    """Boxes below this are not kept."""
    most: int = 100
    """Boxes an image."""

    def __post_init__(self) -> None:
        hold(self, queries=SOME, dim=SOME, levels=SOME, decoder=SOME, heads=SOME, hidden=SOME)
        hold(self, points=SOME, expand=(0.1, 8), denoising=COUNT, label_noise=SHARE, score=SHARE)
        hold(self, box_noise=COUNT, most=SOME)


DETECT = Recipe(
    about="""A few hundred pictures with boxes, on a laptop's CPU; ten minutes for 300 of them.
    saccade train detect --data FOLDER. The backbone begins with weights of the package, where its
    model has some; with your own: --start RUN; without any: --set model.start=""",
    model=Model(name="linglo_cifar", drop_path=0.0),
    task=RetinaNet(dim=64, depth=2, locality=2.0),
    data=Data(holdout=0.2),
    augment=BoxAugment(short=(128, 144, 160, 176, 192), long=256, jitter=0.2, alike=True),
    test=BoxTest(short=160, long=256),
    optim=Optim(name="muon", lr=0.01, momentum=0.95, weight_decay=0.05),
    schedule=Schedule(epochs=15, warmup=2, end=0.01),
    loop=Loop(batch=8, ema=0.99, evaluate_every=5),
)

DETECT_DETR = change(
    DETECT,
    about="""The same with a small DETR, which learns more slowly: boxes as a set, no anchors.
    pip install 'saccade[detection]'; saccade train detect_detr --data FOLDER. At a higher rate the
    decoder may settle on the same boxes for every picture.""",
    model=Model(name="qna_nano", drop_path=0.0),
    task=Detr(queries=25, dim=128, encoder=3, decoder=3, heads=8, hidden=512, dropout=0.0),
    optim=Optim(name="adamw", lr=2e-4, lr_batch=16, weight_decay=1e-4, clip=0.1),
    schedule=Schedule(epochs=200, warmup=5, end=0.01),
    loop=Loop(batch=16, ema=0.99, evaluate_every=10),
)

DETECT_RTDETR = change(
    DETECT,
    about="""The same with a small RT-DETR: boxes as a set, not thinned out. Its backbone begins
    with weights of the package.
    pip install 'saccade[detection]'; saccade train detect_rtdetr --data FOLDER. Of 318 pictures of
    pets, 24 epochs found their heads at 52.6 AP (20 minutes of one core), of 292 pictures of blood
    cells 12 at 57.8 (9 minutes).""",
    task=RTDetr(
        queries=60, dim=96, levels=2, decoder=3, heads=6, hidden=256, expand=0.5, denoising=40
    ),
    optim=Optim(name="muon", lr=0.005, momentum=0.95, weight_decay=1e-4),
    schedule=Schedule(epochs=24, warmup=2, end=0.01),
    loop=Loop(batch=8, ema=0.998, evaluate_every=4),
)

RECIPES = {"detect": DETECT, "detect_detr": DETECT_DETR, "detect_rtdetr": DETECT_RTDETR}
CLAIMS = {}
