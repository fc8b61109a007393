"""What a recipe does to images, in training and in evaluation: a pair of groups for each task."""

import math
from dataclasses import dataclass
from typing import Literal

from saccade.recipes.bounds import COUNT, SHARE, SOME, hold, ordered

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to a training image, in this order; mixing comes last, over the batch."""

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random crop, as a share of the image's."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bicubic"
    flip: float = 0.5
    rand: str = ""
    """timm's policy string, such as rand-m9-n2-mstd0.5."""
    jitter: float = 0.0
    """Strength of colour jitter (brightness, contrast, saturation)."""
    jitter_share: float = 1.0
    """Share of the images that are jittered."""
    grey: float = 0.0
    """Share of the images that lose their colour."""
    erase: float = 0.0
    """Share of the images that lose a rectangle."""
    mixup: float = 0.0
    """Alpha of mixup's beta distribution; none if 0."""
    cutmix: float = 0.0
    switch: float = 0.5
    """Share of cutmix where both are on."""
    mix: float = 1.0
    """Share of the batches that are mixed at all."""
    repeats: int = 1
    """Repeated augmentation: times an image comes in its batch."""

    def __post_init__(self) -> None:
        hold(
            self,
            size=SOME,
            flip=SHARE,
            jitter_share=SHARE,
            grey=SHARE,
            erase=SHARE,
            mixup=COUNT,
            cutmix=COUNT,
            switch=SHARE,
            mix=SHARE,
            repeats=SOME,
        )
        ordered(self, "scale", "ratio")


@dataclass(frozen=True, kw_only=True)
class Test:
    """What happens to an image that is evaluated: resize, and cut the centre."""

    size: int = 224
    crop: float = 0.875
    """Side of the centre crop, as a share of the resized short side."""
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        hold(self, size=SOME)


@dataclass(frozen=True, kw_only=True)
class BoxAugment:
    """What happens to a training image and its boxes, in this order."""

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
    alike: bool = False
    """Take wide and tall images into steps of their own, so that less is padding."""

    def __post_init__(self) -> None:
        hold(self, long=SOME, crop=SOME, flip=SHARE, jitter=COUNT)


@dataclass(frozen=True, kw_only=True)
class BoxTest:
    """What happens to an image that is searched for boxes: a resize, the aspect kept."""

    short: int = 800
    long: int = 1333

    def __post_init__(self) -> None:
        hold(self, short=SOME, long=SOME)


@dataclass(frozen=True, kw_only=True)
class MaskAugment:
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
        hold(self, short=SOME, long=SOME, crop=(32, math.inf), single=SHARE, flip=SHARE)
        hold(self, jitter=COUNT)


@dataclass(frozen=True, kw_only=True)
class MaskTest:
    """What happens to an image whose pixels are told apart: a resize, the aspect kept.

    Figures are counted at the image's own size.
    """

    short: int = 512
    long: int = 2048

    def __post_init__(self) -> None:
        hold(self, short=SOME, long=SOME)
