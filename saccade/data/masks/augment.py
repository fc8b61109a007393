"""Augmentation and preprocessing of images with masks, for segmentation.

In training both are resized, cropped and flipped together; in evaluation only the image is resized,
and the mask keeps its full size. Masks are resized by the nearest pixel, images by interpolation at
the same places.

Random numbers come from torch's global generator, which the loader seeds before each image.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2 as T
from torchvision.transforms.v2 import functional as F

from saccade.data.augment import Colour
from saccade.data.masks import IGNORED
from saccade.data.picture import Normalise
from saccade.recipes.segment import MaskAugment, MaskTest

Pair = tuple[tv_tensors.Image, tv_tensors.Mask]
TRIES = 10  # of a crop that is not all one class
LEAST = 32  # pixels a side, at least, of a network's input


def fitted(size: tuple[int, int], short: float, long: float) -> tuple[int, int]:
    """Height and width with this short side, or less if the long side would be too long."""
    scale = min(short / min(size), long / max(size))
    return max(LEAST, round(size[0] * scale)), max(LEAST, round(size[1] * scale))


def resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    return F.resize_image(image, list(size), T.InterpolationMode.BILINEAR, antialias=True)


class MaskResize:
    """Resize to a short side times a random factor from `scale`; the long side is bounded too."""

    def __init__(self, short: int, long: int, scale: tuple[float, float]):
        self.short, self.long, self.scale = short, long, scale

    def __call__(self, image: Tensor, mask: Tensor) -> Pair:
        low, high = self.scale
        factor = low + (high - low) * float(torch.rand(()))
        size = fitted((image.shape[-2], image.shape[-1]), self.short * factor, self.long * factor)
        nearest = T.InterpolationMode.NEAREST_EXACT
        mask = F.resize_image(mask[None], list(size), nearest)[0]
        return tv_tensors.Image(resized(image, size)), tv_tensors.Mask(mask)

    def __repr__(self) -> str:
        return f"MaskResize(short={self.short}, long={self.long}, scale={self.scale})"


class MaskCrop:
    """Crop a random square; a smaller image is padded with the mean colour and IGNORED.

    One in which a single class has more than `single` of the labelled pixels is drawn again.
    """

    def __init__(self, side: int, single: float, fill: Sequence[int]):
        self.side, self.single, self.fill = side, single, list(fill)

    def __call__(self, image: Tensor, mask: Tensor) -> Pair:
        H, W = mask.shape
        for _ in range(TRIES):
            top, left = (_random_offset(max(side - self.side, 0)) for side in (H, W))
            part = mask[top : top + self.side, left : left + self.side]
            if self.single >= 1 or _largest(part) <= self.single:
                break
        image = image[:, top : top + self.side, left : left + self.side]
        beyond = [0, 0, self.side - part.shape[1], self.side - part.shape[0]]
        image = F.pad_image(image, beyond, fill=self.fill)
        return tv_tensors.Image(image), tv_tensors.Mask(
            F.pad_image(part[None], beyond, fill=IGNORED)[0]
        )

    def __repr__(self) -> str:
        return f"MaskCrop(side={self.side}, single={self.single})"


def _random_offset(most: int) -> int:
    return int(torch.randint(most + 1, ()))


def _largest(mask: Tensor) -> float:
    """The share of the commonest class among the labelled pixels."""
    counts = torch.bincount(mask.flatten().long(), minlength=IGNORED + 1)[:IGNORED]
    return float(counts.max() / counts.sum().clamp(min=1))


class MaskTransform:
    """Steps on image and mask together, then the conversion to tensors."""

    NAMES: ClassVar[dict[type, str]] = {
        MaskResize: "resize",
        MaskCrop: "crop",
        T.RandomHorizontalFlip: "flip",
        T.ColorJitter: "jitter",
    }

    def __init__(self, steps: Sequence[Callable[..., Any]], normalise: Normalise):
        self.steps, self.normalise = list(steps), normalise

    def __call__(
        self, photo: Image.Image, mask: UInt8[np.ndarray, "H W"]
    ) -> tuple[Tensor, dict[str, Any]]:
        image: Any = tv_tensors.Image(torch.from_numpy(np.array(photo)).permute(2, 0, 1))
        labels: Any = tv_tensors.Mask(torch.from_numpy(np.ascontiguousarray(mask)))
        for step in self.steps:
            image, labels = step(image, labels)
        return self.normalise.numbers(image.as_subclass(Tensor)), {
            "mask": labels.as_subclass(Tensor)
        }

    @property
    def names(self) -> list[str]:
        """What is done, in the words of the papers."""
        return [self.NAMES[type(step)] for step in self.steps]

    def __repr__(self) -> str:
        return "\n".join(("MaskTransform", *(f"  {s}" for s in (*self.steps, self.normalise))))


class MaskTestTransform:
    """Resize an evaluated image; its mask, if there is one, stays as it is on disk."""

    def __init__(self, short: int, long: int, normalise: Normalise):
        self.short, self.long, self.normalise = short, long, normalise

    def __call__(self, photo: Image.Image, mask: UInt8[np.ndarray, "H W"] | None = None) -> Any:
        image = torch.from_numpy(np.array(photo)).permute(2, 0, 1)
        size = fitted((photo.height, photo.width), self.short, self.long)
        image = self.normalise.numbers(resized(image, size))
        return image if mask is None else (image, {"mask": torch.from_numpy(mask)})

    def __repr__(self) -> str:
        return f"MaskTestTransform(short={self.short}, long={self.long})\n  {self.normalise}"


def train(augment: MaskAugment, mean: Colour, std: Colour) -> MaskTransform:
    """Preprocessing of training images and their masks."""
    steps: list[Callable[..., Any]] = [
        MaskResize(augment.short, augment.long, augment.scale),
        MaskCrop(augment.crop, augment.single, [round(255 * x) for x in mean]),
    ]
    if augment.flip:
        steps.append(T.RandomHorizontalFlip(augment.flip))
    if augment.jitter:
        steps.append(T.ColorJitter(*(augment.jitter,) * 3))
    return MaskTransform(steps, Normalise(mean, std))


def test(test: MaskTest, mean: Colour, std: Colour) -> MaskTestTransform:
    return MaskTestTransform(test.short, test.long, Normalise(mean, std))
