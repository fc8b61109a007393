"""Pictures with a class for every pixel: what readers of other formats give, and `to_masks`
writes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from saccade.data import picture
from saccade.data.findings import Findings, note

LOSSLESS = (".png", ".bmp", ".tif", ".tiff", ".gif")
IGNORED = 255


class Masked(NamedTuple):
    """A picture and what tells the classes of its pixels."""

    photo: Path
    mask: Path
    stem: str
    """The name that both get, without an ending."""
    key: int = 0
    """Where the format's own annotations of this picture are, if it has any."""


@dataclass
class Regions:
    """A set of pictures with masks, in another format."""

    splits: dict[str, list[Masked]]
    classes: dict[int, str]
    """The name of each id in masks as `read` gives them, or in the files if there is no `read`."""
    ignored: list[int] = field(default_factory=lambda: [IGNORED])
    """Ids that stand for no class: their pixels are ignored."""
    read: Callable[[Masked], UInt8[np.ndarray, "H W"]] | None = None
    """Makes the mask of a pair; None where the files hold ids as they should be."""
    findings: Findings = field(default_factory=dict)

    def note(self, kind: str, line: str) -> None:
        note(self.findings, kind, line)

    def pairs(self) -> Iterator[Masked]:
        for rows in self.splits.values():
            yield from rows


def ids(path: Path) -> Integer[np.ndarray, "H W"]:
    """The numbers in a grey or palette file."""
    with picture.open_image(path, str(path)) as file:
        if len(file.getbands()) > 1 or file.mode == "F":
            raise picture.Unreadable(str(path), f"a mask of mode {file.mode}, not of ids")
        return np.asarray(file).astype(np.int64).clip(0, 2**16 - 1)


def colours(path: Path) -> UInt8[np.ndarray, "H W 3"]:
    """The colours of a file, a palette's own if it has one."""
    with picture.open_image(path, str(path)) as file:
        return np.array(file.convert("RGB"))


def mode(path: Path) -> str:
    """Pillow's word for what a mask's pixels are; "" if it cannot be read."""
    try:
        with picture.open_image(path, str(path)) as file:
            return file.mode
    except picture.Unreadable:
        return ""


def as_png(mask: Integer[np.ndarray, "H W"]) -> Image.Image:
    """A mask as it is written: 8 bits a pixel, or 16 where they are needed."""
    return Image.fromarray(mask.astype(np.uint8 if mask.max(initial=0) < 256 else np.uint16))
