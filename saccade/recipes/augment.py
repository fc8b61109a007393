"""Settings of augmentation and preprocessing for whole images."""

import re
from dataclasses import dataclass
from typing import Literal

from saccade.recipes.bounds import COUNT, SHARE, SIDE, SOME, hold, ordered
from saccade.recipes.group import AugmentSettings, TestSettings

MOST_OPERATIONS = 50  # of rand
Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, kw_only=True)
class Augment(AugmentSettings):
    """Augmentation of training images, in this order; mixing comes last, over the batch."""

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random crop, as a share of the image's."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int | None = None
    """Shift by up to so many pixels instead of the resized crop, reflecting what lies beyond the
    edge; for small pictures, which are then done many at once."""
    interpolation: Interpolation = "bicubic"
    flip: float = 0.5
    alternate: bool = False
    """Mirror each image in every second epoch, half of them in the first, so that two epochs show
    both sides of all; with `pad` only."""
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
    cutout: int = 0
    """Side of a square that every image loses; with `pad` only."""
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
            size=SIDE,
            pad=COUNT,
            cutout=COUNT,
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
        count = re.search(r"-n(\d+)", self.rand)
        if count and not 0 <= int(count[1][:9]) <= MOST_OPERATIONS:
            raise ValueError(
                f"augment.rand: at most {MOST_OPERATIONS} operations an image, got {count[0][1:]!r}"
            )
        self._hold_shifts()

    def _hold_shifts(self) -> None:
        """Refuse what is not done to many pictures at once, and cutout without."""
        if self.pad is None:
            if self.cutout:
                raise ValueError(
                    f"augment.cutout: goes with augment.pad, got cutout={self.cutout}; "
                    f"set augment.pad=4, or erase instead of cutout"
                )
            if self.alternate:
                raise ValueError("augment.alternate: goes with augment.pad; set augment.pad=4")
            return
        if self.pad >= self.size:
            raise ValueError(
                f"augment.pad: less than the side of an image can be reflected, "
                f"got pad={self.pad} size={self.size}"
            )
        alone = [name for name in ("rand", "jitter", "grey", "erase") if getattr(self, name)]
        if alone:
            raise ValueError(
                f"augment.pad: shifted images are done many at once, which {alone[0]} cannot be; "
                f"set augment.{alone[0]} off, or augment.pad=null"
            )


@dataclass(frozen=True, kw_only=True)
class Test(TestSettings):
    """Preprocessing of evaluated images: resize, and crop the centre."""

    size: int = 224
    crop: float = 0.875
    """Side of the centre crop, as a share of the resized short side."""
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        hold(self, size=SIDE, crop=(0.1, 1))
