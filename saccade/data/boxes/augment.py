"""Augmentation and preprocessing of images with boxes, for detectors.

Steps of torchvision.transforms.v2, and two in its manner, built from a recipe's `BoxAugment` or
`BoxTest`. The picture becomes a tensor of bytes first: torch resizes those several times faster
than PIL does, and as well (antialiased).

    in training      boxes and masks move with the image; crowds, and what a crop cut off, are gone
    in evaluation    boxes stay as annotated, in pixels of the picture, and "original" has its size

Random numbers come from torch's global generator, which the loader seeds before each image.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast, overload

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from saccade.data.augment import Colour
from saccade.data.boxes.mosaic import Gathering, together
from saccade.data.boxes.target import Target, cut, moved_alike, select
from saccade.data.boxes.warp import Warp
from saccade.data.picture import Normalise
from saccade.recipes.detect import BoxAugment, BoxTest

Step = Callable[[Tensor, Target], tuple[Tensor, Target]]
LEAST = 32  # pixels a side, at least, of a network's input: strips are widened
ANY = 10**6  # pixels of a long side that is not limited
QUARTER = 0.5  # times the smallest size: that of an image in a mosaic


class BoxResize:
    """The short side to one of some sizes, the long side to no more than `long`; aspect kept.

    Only strips that would be less than LEAST wide or high by then are widened.

    A `scale` other than 1 is multiscale jitter: a factor on top of that, drawn for each image.
    """

    def __init__(self, short: Sequence[int], long: int, scale: tuple[float, float] = (1.0, 1.0)):
        if not short or min(short) < 1 or not 0 < scale[0] <= scale[1]:
            raise ValueError(
                f"augment.short and augment.scale: sides of 1 or more and factors above 0, the "
                f"smaller one first, got {tuple(short)} and {scale}; try (800,) and (1.0, 1.0)"
            )
        self.short, self.long, self.scale = tuple(short), long, scale

    def side(self, H: int, W: int) -> tuple[int, int]:
        """Height and width that an image becomes, drawn where there is a choice."""
        short, (low, high) = self.short[0], self.scale
        if len(self.short) > 1:
            short = self.short[int(torch.randint(len(self.short), ()))]
        jitter = float(torch.empty(()).uniform_(low, high)) if low < high else low
        factor = jitter * min(short / min(H, W), self.long / max(H, W))
        least = max(1, min(LEAST, round(jitter * min(short, self.long))))
        return max(least, round(H * factor)), max(least, round(W * factor))

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        H, W = image.shape[-2:]
        side = list(self.side(H, W))
        return F.resize(image, side, antialias=True), moved_alike(
            target, lambda value: F.resize(value, side)
        )

    def __repr__(self) -> str:
        return f"BoxResize(short={self.short}, long={self.long}, scale={self.scale})"


class BoxCrop:
    """A random part of at most `size` pixels a side, with what it leaves of the boxes.

    With `least`, height and width are drawn from between the two.

    A box of which less than a pixel is left, in width or height, is dropped with its label.
    """

    def __init__(self, size: int, least: int | None = None):
        if least is not None and not 0 < least <= size:
            raise ValueError(
                f"augment.part_sides: the smaller side first, got {(least, size)}; try (384, 600)"
            )
        self.size, self.least = size, least

    def side(self, whole: int) -> int:
        """The side of the part, of an image's; drawn where there is a choice."""
        most = min(whole, self.size)
        if self.least is None or self.least >= most:
            return most
        return int(torch.randint(self.least, most + 1, ()))

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        H, W = image.shape[-2:]
        h, w = self.side(H), self.side(W)
        if (h, w) == (H, W):
            return image, target
        top, left = int(torch.randint(H - h + 1, ())), int(torch.randint(W - w + 1, ()))
        return cut(image, target, top, left, (h, w))

    def __repr__(self) -> str:
        least = "" if self.least is None else f", least={self.least}"
        return f"BoxCrop({self.size}{least})"


class BoxTransform:
    """A picture and its annotation to a tensor and its target boxes.

    Args:
        steps: what an image goes through
        normalise: bytes to numbers
        gathering: whether images are put together, and how often; then the first `alone` steps are
            done to each of them, and the others to what comes of it
        alone: how many steps
        smaller: the resize of an image of a mosaic, in place of those steps
        fill: the colour where no image lies
    """

    def __init__(
        self,
        steps: Sequence[Step],
        normalise: Normalise,
        gathering: Gathering | None = None,
        alone: int = 0,
        smaller: Step | None = None,
        fill: Sequence[int] = (0, 0, 0),
    ):
        self.steps, self.normalise, self.gathering = list(steps), normalise, gathering
        self.alone, self.smaller, self.fill = alone, smaller, tuple(fill)

    def companions(self, count: int, epoch: int) -> list[int]:
        """Which further images of a set of so many this one is put together with."""
        return self.gathering.others(count, epoch) if self.gathering else []

    def __call__(
        self, image: Image.Image, target: Target, *more: tuple[Image.Image, Target]
    ) -> tuple[Tensor, Target]:
        pairs = [_training_target(*pair) for pair in ((image, target), *more)]
        if more:
            smaller = self.smaller
            assert smaller is not None
            x, target_out = together(pairs, self._alone, lambda pair: smaller(*pair), self.fill)
        else:
            x, target_out = self._alone(pairs[0])
        for step in self.steps[self.alone :]:
            x, target_out = step(x, target_out)
        plain = F.clamp_bounding_boxes(target_out["boxes"]).as_subclass(
            Tensor
        )  # rounding may move a corner out of the image
        answer = {**target_out, "boxes": plain}
        if "masks" in target_out:
            masks = target_out["masks"].as_subclass(Tensor)
            full = masks.flatten(1).bool().any(1)  # a thin one may have vanished in a resize
            answer = select({**answer, "masks": masks}, full)
        return self.normalise.numbers(x.as_subclass(Tensor)), answer

    def _alone(self, pair: tuple[Tensor, Target]) -> tuple[Tensor, Target]:
        for step in self.steps[: self.alone]:
            pair = step(*pair)
        return pair

    @property
    def names(self) -> list[str]:
        """What is done, in the papers' words, read off the live steps."""
        gathering = self.gathering
        shares = {"mosaic": gathering.mosaic, "mixup": gathering.mixup} if gathering else {}
        words = [f"{name} ({share:.0%})" for name, share in shares.items() if share]
        return [*_names(self.steps), *words]

    def __repr__(self) -> str:
        steps = [*self.steps, *([self.gathering] if self.gathering else []), self.normalise]
        return "\n".join(("BoxTransform", *(f"  {step}" for step in steps)))


class BoxTestTransform:
    """A picture to a tensor as a trained model sees it; the annotation is not changed."""

    def __init__(self, resize: BoxResize, normalise: Normalise):
        self.steps, self.normalise = [resize], normalise

    @overload
    def __call__(self, image: Image.Image) -> Tensor: ...
    @overload
    def __call__(self, image: Image.Image, target: Target) -> tuple[Tensor, Target]: ...
    def __call__(self, image, target=None):
        x, _ = self.steps[0](_bytes(image), {})
        x = self.normalise.numbers(x.as_subclass(Tensor))
        if target is None:
            return x
        return x, {**target, "original": torch.tensor([image.height, image.width])}

    @property
    def names(self) -> list[str]:
        """What is done, in the papers' words, read off the live steps."""
        return _names(self.steps)

    def __repr__(self) -> str:
        return "\n".join(
            ("BoxTestTransform", *(f"  {step}" for step in (*self.steps, self.normalise)))
        )


def _bytes(image: Image.Image) -> tv_tensors.Image:
    return tv_tensors.Image(F.pil_to_tensor(image))


def _training_target(image: Image.Image, target: Target) -> tuple[Tensor, Target]:
    """A picture as bytes, and the objects to find in it: crowds are none."""
    alone, boxes = ~target["crowd"], cast(Any, tv_tensors.BoundingBoxes)
    answer: Target = {
        "boxes": boxes(
            target["boxes"][alone], format="XYXY", canvas_size=(image.height, image.width)
        ),
        "labels": target["labels"][alone],
    }
    if "masks" in target:
        answer["masks"] = tv_tensors.Mask(target["masks"][alone])
    return _bytes(image), answer


def train(augment: BoxAugment, mean: Colour, std: Colour) -> BoxTransform:
    """Preprocessing of training images: a resize, and what else the recipe asks for."""
    steps: list[Step] = []
    if augment.part:
        low, high = augment.part_sides
        parts = [BoxResize(augment.part_short, ANY), BoxCrop(high, low)]
        steps.append(v2.RandomApply(parts, augment.part))
    steps.append(BoxResize(augment.short, augment.long, augment.scale))
    if augment.crop is not None:
        steps.append(BoxCrop(augment.crop))
    alone, fill = len(steps), [round(255 * part) for part in mean]
    warp = Warp(
        augment.rotate, augment.shift, augment.zoom, augment.shear, augment.perspective, fill
    )
    if augment.warped:
        steps.append(warp)
    if augment.flip:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.jitter:
        steps.append(v2.ColorJitter(*(augment.jitter,) * 3))
    if any(augment.hsv):
        hue, saturation, value = augment.hsv
        steps.append(v2.ColorJitter(brightness=value, saturation=saturation, hue=hue))
    gathering = Gathering(augment.mosaic, augment.mixup, augment.together)
    low, high = augment.scale
    smaller = BoxResize(augment.short, augment.long, (QUARTER * low, high))
    return BoxTransform(steps, Normalise(mean, std), gathering or None, alone, smaller, fill)


def test(test: BoxTest, mean: Colour, std: Colour) -> BoxTestTransform:
    """Preprocessing of evaluated images: a resize."""
    return BoxTestTransform(BoxResize((test.short,), test.long), Normalise(mean, std))


NAMES: dict[type, str] = {
    BoxResize: "resize",
    BoxCrop: "crop",
    v2.RandomHorizontalFlip: "flip",
    v2.ColorJitter: "colour jitter",
    Warp: "warp",
}


def _names(steps: Sequence[Any]) -> list[str]:
    names = []
    for step in steps:
        if isinstance(step, v2.RandomApply):
            names.append(f"{' and '.join(_names(step.transforms)[::2])} ({step.p:.0%})")
            continue
        names.append(NAMES[type(step)])
        if isinstance(step, BoxResize) and (len(step.short) > 1 or step.scale[0] < step.scale[1]):
            names.append("multiscale jitter")
    return names
