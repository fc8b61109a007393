"""Random patches of pictures, which are never resized: the network learns their sharpness."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from saccade.data.augment import Colour, Normalise
from saccade.recipes.upscale import PatchAugment, WholeTest


class PatchTransform:
    """A random patch, mirrored and turned; a picture that is too small is padded by reflection."""

    def __init__(self, settings: PatchAugment, normalise: Normalise):
        self.size, self.flip, self.turn = settings.size, settings.flip, settings.turn
        self.normalise = normalise

    def __call__(self, photo: Image.Image, label: Any = None) -> tuple[Tensor, dict[str, Any]]:
        top, left = (
            int(torch.randint(max(side - self.size, 0) + 1, ()))
            for side in (photo.height, photo.width)
        )
        right, below = min(left + self.size, photo.width), min(top + self.size, photo.height)
        patch = _pixels(photo.crop((left, top, right, below)))
        for axis in (1, 2):
            if torch.rand(()) < self.flip:
                patch = patch.flip(axis)
        if torch.rand(()) < self.turn:
            patch = patch.transpose(1, 2)
        return self.normalise.numbers(_filled(patch, self.size)), {}

    def __repr__(self) -> str:
        return f"PatchTransform(size={self.size}, flip={self.flip}, turn={self.turn})"


class WholeTransform:
    """The picture as it is, or its centre."""

    def __init__(self, most: int | None, normalise: Normalise):
        self.most, self.normalise = most, normalise

    def __call__(self, photo: Image.Image, label: Any = None) -> Any:
        W, H = photo.size
        if self.most is not None:
            w, h = min(W, self.most), min(H, self.most)
            left, top = (W - w) // 2, (H - h) // 2
            photo = photo.crop((left, top, left + w, top + h))
        image = self.normalise.numbers(_pixels(photo))
        return image if label is None else (image, {})

    def __repr__(self) -> str:
        return f"WholeTransform(most={self.most})"


def _pixels(photo: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1)


def _filled(patch: Tensor, size: int) -> Tensor:
    """The patch padded to at least `size` pixels a side."""
    while min(patch.shape[1:]) < size:
        H, W = patch.shape[1:]
        beyond = (
            0,
            min(size - W, W - 1) if W < size else 0,
            0,
            min(size - H, H - 1) if H < size else 0,
        )
        if not any(beyond):  # a line of one pixel has no mirror
            return F.pad(patch[None].float(), (0, size - W, 0, size - H), mode="replicate")[0].to(
                patch.dtype
            )
        patch = F.pad(patch[None].float(), beyond, mode="reflect")[0].to(patch.dtype)
    return patch


def train(settings: PatchAugment, mean: Colour, std: Colour) -> PatchTransform:
    """What a training image goes through."""
    return PatchTransform(settings, Normalise(mean, std))


def test(settings: WholeTest, mean: Colour, std: Colour) -> WholeTransform:
    """What an evaluated image goes through."""
    return WholeTransform(settings.most, Normalise(mean, std))
