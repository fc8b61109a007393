"""Read one picture from disk or memory: upright, in RGB, and as a model's input.

Every picture is opened by `open_image`. It allows only the decoders in FORMATS, chosen by the
file's content and not by its name: Pillow has many more, and some of them start other programs.
"""

import functools
import io
import os
import stat
import warnings
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

MOST = 100_000_000  # pixels; beyond this a file is a bomb or a mistake
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "PPM")
LARGE = 2**24  # pixels of a picture that is drawn
PHOTOS = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".avif")
ENDINGS = (*PHOTOS, ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
# EXIF's orientations of pictures turned by 90 degrees, and the turn from upright back to each.
BACK = {
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip


class Unreadable(ValueError):  # noqa: N818 (a finding about a picture)
    """A picture that cannot be used, and why: broken, cut short, empty, or far too large."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)  # both, so that a worker can send it as a pickle
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name!r} is no readable picture ({self.reason})"


def is_one(name: str, endings: Sequence[str] = ENDINGS) -> bool:
    """Whether a file's name is that of a picture; hidden files are not."""
    return os.path.splitext(name)[1].lower() in endings and not name.startswith(".")


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that are read: those of FORMATS that Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


class Size(NamedTuple):
    """Width and height of a picture as stored, and after turning it upright."""

    stored: tuple[int, int]
    upright: tuple[int, int]


def size(path: str | Path) -> Size | None:
    """The size of a picture, read from the head of its file; None if that cannot be read."""
    try:
        with open_image(path, str(path)) as file:
            stored = _stored(file)
            return Size(stored, stored[::-1] if _orientation(file) in BACK else stored)
    except Unreadable:
        return None


def _orientation(file: Image.Image) -> Any:
    return file.getexif().get(0x0112)


def _stored(file: Image.Image) -> tuple[int, int]:
    """Width and height as stored; Pillow turns a TIFF by itself, which is undone here."""
    tags = file.getexif() if file.format == "TIFF" else {}
    W, H = tags.get(256), tags.get(257)
    return (W, H) if isinstance(W, int) and isinstance(H, int) else file.size


@contextmanager
def open_image(
    source: str | Path | io.BytesIO, name: str, most: int | None = None
) -> Generator[Image.Image]:
    """Open a picture's file; one that is broken or too large raises `Unreadable`."""
    most = MOST if most is None else most
    try:
        if not isinstance(source, io.BytesIO) and not stat.S_ISREG(os.stat(source).st_mode):
            raise Unreadable(name, "it is no ordinary file")  # a FIFO would be waited for
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata and large sizes are judged here
            # By a path, Pillow would map a plain TIFF that lies on its side with wrong lines.
            with _stream(source) as content, Image.open(content, formats=formats()) as file:
                W, H = file.size
                if W * H > most:
                    raise Unreadable(name, f"{W} x {H} pixels, at most {most:,} are read")
                yield file
    except Unreadable:
        raise
    except FileNotFoundError as error:
        raise Unreadable(name, "there is no such file") from error
    except UnidentifiedImageError as error:
        raise Unreadable(name, f"of no format that is read: {', '.join(formats())}") from error
    except Image.DecompressionBombError as error:  # before its size is known here
        raise Unreadable(name, f"far too many pixels, at most {most:,} are read") from error
    except Exception as error:  # a decoder of a broken file raises whatever it stumbles over
        raise Unreadable(name, f"{type(error).__name__}: {error}".partition("\n")[0]) from error


def _stream(source: str | Path | io.BytesIO) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(source) if isinstance(source, io.BytesIO) else open(source, "rb")


def rgb(
    source: str | Path | io.BytesIO, name: str, annotated: tuple[int, int] | None = None
) -> Image.Image:
    """The picture upright, with transparent parts on white, in 8 bits a colour.

    `annotated` is the width and height that annotations (boxes, a mask) refer to. A picture that
    has this size as stored, but not after turning, is not turned.
    """
    with open_image(source, name) as file:
        turn = None
        if annotated is not None and annotated == _stored(file) and annotated[0] != annotated[1]:
            turn = BACK.get(_orientation(file))
        file.load()  # a TIFF is upright from here on
        if turn is not None:
            return in_rgb(file if file.size == annotated else file.transpose(turn))
        ImageOps.exif_transpose(file, in_place=True)
        return in_rgb(file)


def in_rgb(file: Image.Image) -> Image.Image:
    """A picture of any mode in 8 bits a colour: transparent parts on white, 16 bits scaled."""
    if file.mode == "RGB" and "transparency" not in file.info:
        return file
    if file.mode.startswith("I"):  # 16 bits; a plain conversion would clip them at 255
        grey = np.asarray(file).clip(0, 0xFFFF) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if file.mode == "F":
        raise ValueError("its pixels are real numbers of unknown range")
    if file.has_transparency_data:
        rgba = file.convert("RGBA")
        photo = Image.new("RGB", rgba.size, "white")
        photo.paste(rgba, mask=rgba.getchannel("A"))
        return photo
    return file.convert("RGB")


def read(path: str | Path, side: int | None = None) -> Float[np.ndarray, "H W 3"]:
    """A file's picture in 0..1, its short side resized to `side`; an unreadable file is refused."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no picture {str(path)!r}; check the path")
    return sized(rgb(path, str(path)), side, str(path))


def sized(photo: Image.Image, side: int | None, name: str) -> Float[np.ndarray, "H W 3"]:
    """The picture in 0..1, its short side resized to `side`; a very long strip is refused."""
    if side is not None:
        scale = side / min(photo.size)
        W, H = (max(side, round(n * scale)) for n in photo.size)
        if W * H > LARGE:
            raise Unreadable(name, f"so long a strip that it would be drawn {W} x {H} large")
        photo = photo.resize((W, H), Image.Resampling.BICUBIC)
    return np.asarray(photo, np.float32) / 255


def to_input(
    photo: Float[np.ndarray, "H W 3"], timm_config: dict[str, Any]
) -> Float[Tensor, "1 3 H W"]:
    """Normalised with a model's mean and standard deviation."""
    x = torch.from_numpy(photo).permute(2, 0, 1)
    mean, std = (torch.tensor(timm_config[k])[:, None, None] for k in ("mean", "std"))
    return ((x - mean) / std)[None]


class Normalise:
    """An RGB image as a normalised tensor: (x / 255 - mean) / std."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        self.mean, self.std = tuple(mean), tuple(std)
        self.factor = 1 / (255 * torch.tensor(self.std)[:, None, None])
        self.shift = torch.tensor(self.mean)[:, None, None] / torch.tensor(self.std)[:, None, None]

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        return self.numbers(torch.from_numpy(np.array(image)).permute(2, 0, 1))

    def numbers(self, image: UInt8[Tensor, "*B 3 H W"]) -> Float[Tensor, "*B 3 H W"]:
        return image.contiguous().float().mul_(self.factor).sub_(self.shift)

    def __repr__(self) -> str:
        return f"Normalise(mean={self.mean}, std={self.std})"
