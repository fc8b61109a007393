"""Crop, flip and cutout of whole batches of small pictures in one array.

    reflect `pad` pixels on every side, cut out `size` x `size` anywhere, mirror some,
    normalise, and set a square of `cutout` x `cutout` to the mean colour

With `alternate`, a picture is mirrored in every second epoch instead of at random; the seed decides
which half begins mirrored.

A picture takes four random numbers, which are a function of (seed, epoch, position). A
counter-based generator (Philox) computes them for any position, so that parts of a batch equal the
whole batch.
"""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8, UInt64
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from torch import Tensor
from torchvision import transforms as T

from saccade.data.picture import Normalise
from saccade.recipes.augment import Augment

Draws = UInt64[np.ndarray, "B 4"]
TURN = 4  # what `Together.in_turn` draws, apart from `saccade.data.reader`'s


def draws(key: Sequence[int], first: int, count: int) -> Draws:
    """Four random numbers for each of `count` positions from `first` on."""
    words = np.random.SeedSequence(key).generate_state(2, np.uint64)
    bits: Any = np.random.Philox(key=words, counter=first)
    return bits.random_raw(4 * count).reshape(count, 4)


class Together:
    """Preprocessing of small training pictures, one by one or a batch at once."""

    def __init__(self, augment: Augment, mean: Sequence[float], std: Sequence[float]):
        self.size, self.pad = augment.size, augment.pad or 0
        self.flip, self.cutout, self.alternate = augment.flip, augment.cutout, augment.alternate
        how = T.InterpolationMode(augment.interpolation)
        self.fit = T.Compose([T.Resize(self.size, how), T.CenterCrop(self.size)])
        self.normalise = Normalise(mean, std)

    @overload
    def __call__(self, image: Image.Image) -> Tensor: ...
    @overload
    def __call__(self, image: Image.Image, label: int) -> tuple[Tensor, dict[str, Any]]: ...
    def __call__(self, image, label=None):
        """One picture, resized if need be, with random numbers of numpy's global generator."""
        pixels = np.asarray(self.fit(image)).transpose(2, 0, 1)[None]
        numbers = np.random.randint(2**64, size=(1, 4), dtype=np.uint64)
        one = self._shifted(pixels, numbers)[0]
        return one if label is None else (one, {"label": label})

    def in_turn(
        self, numbers: Draws, indices: Int64[np.ndarray, "B"], count: int, seed: int, epoch: int
    ) -> Draws:
        """The random numbers, with the third replaced where mirrors alternate.

        Args:
            drawn: four random numbers for each image
            indices: which images of the set these are
            count: how many the set has
            seed: decides which half begins mirrored
            epoch: even or odd
        """
        if not self.alternate:
            return numbers
        begins = np.random.default_rng((TURN, seed)).integers(2, size=count)[indices]
        mirrored = (begins + epoch) % 2 == 1
        return np.column_stack(
            (numbers[:, :2], np.where(mirrored, np.uint64(0), ~np.uint64(0)), numbers[:, 3:])
        )

    def block(
        self, pixels: UInt8[np.ndarray, "B 3 H W"], numbers: Draws
    ) -> Float[Tensor, "B 3 H W"] | None:
        """A batch of pictures of the right size, by their random numbers; None for other sizes."""
        fits = pixels.shape[2:] == (self.size, self.size)
        return self._shifted(pixels, numbers) if fits else None

    def _shifted(
        self, pixels: UInt8[np.ndarray, "B 3 H W"], numbers: Draws
    ) -> Float[Tensor, "B 3 H W"]:
        top, left = (numbers[:, :2] % np.uint64(2 * self.pad + 1)).T.astype(np.int64)
        spread = np.pad(pixels, ((0, 0), (0, 0), *[(self.pad, self.pad)] * 2), mode="reflect")
        every_cut = sliding_window_view(spread, (self.size, self.size), (2, 3))
        cut = every_cut[np.arange(len(pixels)), :, top, left]  # B 3 size size, a copy
        share = 0.5 if self.alternate else self.flip
        mirrored = numbers[:, 2] < np.uint64(min(int(share * 2**64), 2**64 - 1))
        cut[mirrored] = cut[mirrored][..., ::-1]
        image = self.normalise.numbers(torch.from_numpy(cut))
        return image.masked_fill_(self._holes(numbers[:, 3]), 0) if self.cutout else image

    def _holes(self, numbers: UInt64[np.ndarray, "B"]) -> Tensor:
        """Masks of the cutout squares, B 1 size size; their centre may be any pixel."""
        centres = np.stack((numbers >> np.uint64(32), numbers & np.uint64(2**32 - 1)), 1)
        first = (centres % np.uint64(self.size)).astype(np.int64) - self.cutout // 2  # B 2
        along = np.arange(self.size) - first[:, :, None]
        rows, columns = ((0 <= along) & (along < self.cutout)).swapaxes(0, 1)
        return torch.from_numpy(rows[:, None, :, None] & columns[:, None, None, :])

    @property
    def names(self) -> list[str]:
        """The names of the steps, in the field's words."""
        steps = {"crop": True, "flip": self.flip > 0 or self.alternate, "cutout": self.cutout > 0}
        return [name for name, present in steps.items() if present]

    def __repr__(self) -> str:
        return f"Together(size={self.size}, pad={self.pad}, flip={self.flip}, cutout={self.cutout})"
