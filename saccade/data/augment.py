"""Augmentation and preprocessing of images for classifiers.

A `Transform` is a list of steps, each of torchvision or timm, built from a recipe's `Augment` or
`Test`. A field that is 0 or empty adds no step, so the list says what is done. Mixing needs two
images and comes after them, over the batch. Small pictures that are shifted instead of resized are
done many at once (`Together`).

Random numbers come from the global generators of python, numpy and torch. The loader seeds these
before each image, so that the same image comes out again.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from timm.data.auto_augment import RandAugment, rand_augment_transform
from timm.data.mixup import cutmix_bbox_and_lam
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation, str_to_pil_interp
from torch import Tensor
from torchvision import transforms as T

from saccade.data.batch_augment import Together
from saccade.data.picture import Normalise
from saccade.recipes.augment import Augment, Test

Colour = Sequence[float]
STRIP = 4  # times as long as wide; longer strips are cropped before they are resized


class Transform:
    """Steps one after the other: an image to a tensor, and its label to a target."""

    def __init__(self, steps: Sequence[Callable[[Any], Any]]):
        self.steps = list(steps)

    @overload
    def __call__(self, image: Image.Image) -> Tensor: ...
    @overload
    def __call__(self, image: Image.Image, label: int) -> tuple[Tensor, dict[str, Any]]: ...
    def __call__(self, image, label=None):
        for step in self.steps:
            image = step(image)
        return image if label is None else (image, {"label": label})

    @property
    def names(self) -> list[str]:
        """The names of the steps, in the papers' words."""
        inner = [s.transforms[0] if isinstance(s, T.RandomApply) else s for s in self.steps]
        return [NAMES[type(step)] for step in inner if type(step) in NAMES]

    def __repr__(self) -> str:
        return "\n".join(("Transform", *(f"  {step}" for step in self.steps)))


class Crop(RandomResizedCropAndInterpolation):
    """timm's random crop; of an image a few pixels wide it takes at least one pixel."""

    @staticmethod
    def get_params(
        img: Image.Image, scale: tuple[float, float], ratio: tuple[float, float]
    ) -> tuple[int, int, int, int]:
        """Top, left, height and width."""
        box = RandomResizedCropAndInterpolation.get_params(img, scale, ratio)
        top, left, h, w = box
        W, H = img.size
        return min(top, H - 1), min(left, W - 1), max(1, h), max(1, w)


class Trim:
    """Crop the middle of a very long or high image: resizing it whole would fill the memory."""

    def __call__(self, image: Image.Image) -> Image.Image:
        W, H = image.size
        most = STRIP * min(W, H)
        if max(W, H) <= most:
            return image
        w, h = min(W, most), min(H, most)
        left, top = (W - w) // 2, (H - h) // 2
        return image.crop((left, top, left + w, top + h))

    def __repr__(self) -> str:
        return f"Trim({STRIP}:1)"


class Centre(Transform):
    """Preprocessing of evaluated images; a whole batch at once where no resize is needed."""

    def __init__(self, test: Test, normalise: Normalise):
        how = T.InterpolationMode(test.interpolation)
        resize = T.Resize(math.floor(test.size / test.crop), how)
        super().__init__([Trim(), resize, T.CenterCrop(test.size), normalise])
        self.exact = (test.size, test.size) if test.crop == 1 else None
        self.normalise = normalise

    def block(
        self, pixels: UInt8[np.ndarray, "B 3 H W"], numbers: object
    ) -> Float[Tensor, "B 3 H W"] | None:
        """The tensor of images that need no resize; None for others. Nothing is random."""
        if pixels.shape[2:] != self.exact:
            return None
        return self.normalise.numbers(torch.from_numpy(pixels))


def train(augment: Augment, mean: Colour, std: Colour) -> Transform | Together:
    """Preprocessing of training images: a random crop, and what else the recipe asks for."""
    if augment.pad is not None:
        return Together(augment, mean, std)
    steps: list[Callable[[Any], Any]] = [
        Crop(augment.size, augment.scale, augment.ratio, augment.interpolation)
    ]
    if augment.flip:
        steps.append(T.RandomHorizontalFlip(augment.flip))
    if augment.rand:
        steps.append(_rand(augment, mean))
    if augment.jitter:
        jitter = T.ColorJitter(*(augment.jitter,) * 3)
        steps.append(T.RandomApply([jitter], augment.jitter_share))
    if augment.grey:
        steps.append(T.RandomGrayscale(augment.grey))
    steps.append(Normalise(mean, std))
    if augment.erase:
        steps.append(RandomErasing(augment.erase, mode="pixel", device="cpu"))
    return Transform(steps)


def _rand(augment: Augment, mean: Colour) -> RandAugment:
    """timm's RandAugment; shifts grow with the image, and uncovered pixels get the mean colour."""
    options = {
        "translate_const": int(augment.size * 0.45),
        "img_mean": tuple(min(255, round(255 * x)) for x in mean),
        "interpolation": str_to_pil_interp(augment.interpolation),
    }
    try:
        if not re.fullmatch(r"rand(-[a-z]+[\d.]+)*", augment.rand):
            raise ValueError("timm skips words that it does not know")
        return rand_augment_transform(augment.rand, options)
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(
            f"augment.rand: no policy of timm's, got {augment.rand!r}; try 'rand-m9-n2-mstd0.5'"
        ) from error


def test(test: Test, mean: Colour, std: Colour) -> Transform:
    """Preprocessing of evaluated images: short side to size / crop, then the centre."""
    if not 0 < test.crop <= 1:
        raise ValueError(f"test.crop: a share in 0..1, got {test.crop}; try 0.875")
    return Centre(test, Normalise(mean, std))


NAMES: dict[type, str] = {
    Crop: "crop",
    T.RandomHorizontalFlip: "flip",
    RandAugment: "RandAugment",
    T.ColorJitter: "jitter",
    T.RandomGrayscale: "grey",
    RandomErasing: "erasing",
    T.Resize: "resize",
    T.CenterCrop: "centre",
}


class Mix:
    """Mixup and cutmix of neighbours: images 0 and 1, 2 and 3, ...

        mixup   x0' = s x0 + (1 - s) x1    x1' = s x1 + (1 - s) x0     s ~ Beta(alpha, alpha)
        cutmix  a rectangle of 1 - s of the area comes from the neighbour

    loss = s CE(label) + (1 - s) CE(other). The random numbers are drawn once for a step, and
    neighbours stay together when a batch is cut into parts of even size, so that mixing the parts
    equals mixing the whole. The last image of an odd batch has no neighbour and is not mixed.
    """

    def __init__(self, augment: Augment):
        self.alphas = {"mixup": augment.mixup, "cutmix": augment.cutmix}
        self.switch, self.share = augment.switch, augment.mix

    @property
    def names(self) -> list[str]:
        """Which of the two are on."""
        return [name for name, alpha in self.alphas.items() if alpha]

    def __call__(
        self, image: Float[Tensor, "B 3 H W"], label: Int64[Tensor, "B"], seed: int
    ) -> tuple[Float[Tensor, "B 3 H W"], dict[str, Tensor]]:
        """The images, mixed in place; labels, the neighbours' labels, and the share of each."""
        rows = len(image) // 2 * 2
        other = label.clone()
        other[:rows] = label[:rows].unflatten(0, (-1, 2)).flip(1).flatten()
        share = torch.ones(len(image))
        share[:rows] = self._mixed(image[:rows].unflatten(0, (-1, 2)), seed) if rows else 1.0
        return image, {"label": label, "other": other, "share": share}

    def _mixed(self, pairs: Float[Tensor, "P 2 3 H W"], seed: int) -> float:
        """Mix in place; gives the share that each image keeps of itself."""
        chance = np.random.RandomState(seed)
        both = all(self.alphas.values())
        cut = chance.rand() < self.switch if both else bool(self.alphas["cutmix"])
        alpha = self.alphas["cutmix" if cut else "mixup"]
        if not alpha or chance.rand() >= self.share:
            return 1.0
        s = float(chance.beta(alpha, alpha))
        if cut:
            (top, bottom, left, right), s = _box(pairs.shape, s, chance)
            box = pairs[..., top:bottom, left:right]
            box.copy_(box.flip(1))
            return s
        # Two rounded operations, not a fused one: the result does not depend on how a batch is cut.
        neighbour = pairs.flip(1).mul_(1 - s)
        pairs.mul_(s).add_(neighbour)
        return s


def _box(
    shape: Sequence[int], s: float, chance: np.random.RandomState
) -> tuple[tuple[int, int, int, int], float]:
    """timm's box for cutmix, drawn from our generator instead of numpy's global one."""
    state = np.random.get_state()
    np.random.set_state(chance.get_state())
    try:
        box, s = cutmix_bbox_and_lam(tuple(shape), s)
    finally:
        np.random.set_state(state)
    top, bottom, left, right = map(int, box)
    return (top, bottom, left, right), float(s)
