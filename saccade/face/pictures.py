"""Convert files, arrays, tensors and lists of them to PIL pictures."""

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from saccade.data.picture import Unreadable, rgb
from saccade.infer.files import pictures as files_of

LARGEST = 1 << 28  # numbers of an array
KINDS = "a file, a PIL image, an array H W 3, a tensor 3 H W, or a list of them"


class Album:
    """Pictures of any kind, read one after the other."""

    def __init__(self, items: Iterable[Any]):
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def name(self, i: int) -> str:
        item = self.items[i]
        return str(item) if isinstance(item, str | Path) else f"picture {i + 1}"

    def read(self, i: int) -> tuple[Image.Image, dict[str, Any]]:
        return self.photo(i), {}

    def photo(self, i: int) -> Image.Image:
        """Upright and in RGB."""
        item = self.items[i]
        if isinstance(item, str | Path):
            return rgb(item, str(item))
        return item if item.mode == "RGB" else _converted(item, self.name(i))

    @property
    def in_memory(self) -> bool:
        """Whether no file has to be read."""
        return not any(isinstance(item, str | Path) for item in self.items)


def album(images: Any) -> tuple[Album, bool]:
    """The pictures of an argument, and whether it may stand for several.

    Args:
        images: a file, folder or pattern, a PIL image, an array, a tensor, or a list of these
    """
    items, several = _items(images)
    return Album(items), several


def _items(images: Any) -> tuple[list[Any], bool]:
    if isinstance(images, str | Path):
        word = str(images)
        if "://" in word:
            raise ValueError(f"pictures: nothing is fetched, got {word!r}; download it first")
        several = Path(word).is_dir() or (not Path(word).exists() and glob.has_magic(word))
        return list(files_of(word, "predict")), several
    if isinstance(images, Image.Image):
        return [_upright(images)], False
    if isinstance(images, torch.Tensor):
        images = images.detach().cpu()
        if images.ndim == 4:
            return [_of_tensor(one) for one in images], True
        return [_of_tensor(images)], False
    if isinstance(images, np.ndarray):
        if images.ndim == 4:
            return [_of_array(one) for one in images], True
        return [_of_array(images)], False
    if isinstance(images, Iterable) and not isinstance(images, bytes | dict):
        return [item for one in images for item in _items(one)[0]], True
    raise TypeError(f"pictures: give {KINDS}; got {type(images).__name__}")


def _upright(photo: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(photo)


def _converted(photo: Image.Image, name: str) -> Image.Image:
    """In RGB as a file of it would be read: 16 bits are scaled, transparent parts on white."""
    from saccade.data.picture import in_rgb

    try:
        return in_rgb(photo)
    except ValueError as error:
        raise Unreadable(name, str(error)) from error


def _of_tensor(image: torch.Tensor) -> Image.Image:
    """Of 3 H W, 1 H W or H W."""
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(
            f"pictures: a tensor is 3 H W (or B 3 H W), got {tuple(image.shape)}; "
            f"permute it, or give an array H W 3"
        )
    image = image.float() if image.is_floating_point() else image
    return _of_array(image.permute(1, 2, 0).numpy(), "tensor")


def _of_array(pixels: np.ndarray, what: str = "array") -> Image.Image:
    """Of H W 3, H W 1 or H W; bytes, or numbers in 0..1."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        raise ValueError(
            f"pictures: an array is H W 3 (or B H W 3), got {pixels.shape}; "
            f"transpose it, or give a tensor 3 H W"
        )
    if not pixels.size or pixels.size > LARGEST:
        raise ValueError(f"pictures: an {what} of {pixels.shape} is no picture")
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.float32)
    if np.issubdtype(pixels.dtype, np.floating):
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):  # not a number, too
            raise ValueError(
                f"pictures: the numbers of a picture lie in 0..1, got {low:.3g} to {high:.3g}; "
                f"give it before it is normalised, or call model(tensor) with one that is"
            )
        pixels = np.round(255 * pixels).astype(np.uint8)
    if pixels.dtype != np.uint8:
        low, high = int(pixels.min()), int(pixels.max())
        if low < 0 or high > 255:
            raise ValueError(f"pictures: bytes are 0..255, got {low} to {high} in an {what}")
        pixels = pixels.astype(np.uint8)
    photo = Image.fromarray(np.ascontiguousarray(pixels))
    return photo if photo.mode == "RGB" else _converted(photo, what)
