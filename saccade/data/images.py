"""Labelled images: in files, in memory, or as a subset of another set.

An image is opened by `read` and never before. Sets are copied to worker processes, so they hold
compact arrays and no open files.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from saccade.data import picture
from saccade.data.picture import Unreadable

__all__ = ["Arrays", "Files", "Images", "Listing", "Some", "Strings", "Unreadable"]


class Images:
    """Pictures by number, and their `labels`, which are known without opening a picture."""

    classes: list[str]
    labels: Integer[np.ndarray, "N"]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, i: int) -> tuple[Image.Image, Any]:
        """The picture in RGB and its label; raises `Unreadable`."""
        raise NotImplementedError

    def name(self, i: int) -> str:
        """Its name in reports."""
        raise NotImplementedError

    def block(
        self, indices: Integer[np.ndarray, "B"]
    ) -> tuple[UInt8[np.ndarray, "B 3 H W"], Integer[np.ndarray, "B"]] | None:
        """Several pictures at once and their labels; None if they are not in memory."""
        return None

    def content(self, i: int) -> bytes:
        """The bytes for a checksum of one image: those of its file, if it has one."""
        return np.asarray(self.read(i)[0]).tobytes()

    def size(self, i: int) -> int:
        """How many bytes its files have; 0 where it has none of its own, -1 where they are gone."""
        return 0

    def parts(self) -> list[np.ndarray]:
        """The arrays that a checksum of the set is made of: names, labels and their order."""
        return [self.labels]

    def digest(self) -> str:
        """A checksum: equal for equal sets in any folder. No picture file is opened."""
        digest = hashlib.sha256()
        for part in self.parts():
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


def size_of(path: str) -> int:
    """The bytes of a file; -1 where it is gone."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


@dataclass(frozen=True)
class Listing:
    """The items of a set with the names of their classes, before classes have numbers."""

    what: str
    train: Sequence[tuple[Any, str]]
    """Items (file names, offsets, rows: the layout's own) and the names of their classes."""
    val: Sequence[tuple[Any, str]] | None
    """None if the data set has no validation images of its own."""
    make: Callable[[list[Any], list[int], list[str]], Images]
    """The set of some items, their labels and the names of all classes."""
    order: Sequence[str] | None = None
    """The classes in the set's own order; by name if None."""
    warnings: Sequence[str] = ()


class Strings:
    """Very many names as two arrays: forked workers share them, where a list would be copied."""

    def __init__(self, names: Iterable[str]):
        coded = [name.encode(errors="surrogateescape") for name in names]
        self.text = np.frombuffer(b"".join(coded), np.uint8)
        self.ends = np.cumsum([0, *map(len, coded)])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: int) -> str:
        return self.text[self.ends[i] : self.ends[i + 1]].tobytes().decode(errors="surrogateescape")


class Files(Images):
    """Picture files below a folder."""

    def __init__(
        self, root: str | Path, names: Sequence[str], labels: Sequence[int], classes: list[str]
    ):
        self.root, self.names = Path(root), Strings(names)
        self.labels, self.classes = np.asarray(labels, np.int64), classes

    def read(self, i: int) -> tuple[Image.Image, int]:
        path = self.name(i)
        return picture.rgb(path, path), int(self.labels[i])

    def name(self, i: int) -> str:
        return os.path.join(self.root, self.names[i])  # a Path takes several times as long

    def content(self, i: int) -> bytes:
        return Path(self.name(i)).read_bytes()

    def size(self, i: int) -> int:
        return size_of(self.name(i))

    def parts(self) -> list[np.ndarray]:
        return [self.names.text, self.names.ends, self.labels]


class Arrays(Images):
    """Small pictures held in memory: grey (N H W) or in colour (N 3 H W)."""

    def __init__(
        self,
        title: str,
        pixels: UInt8[np.ndarray, "N *colour H W"],
        labels: Integer[np.ndarray, "N"],
        classes: list[str],
    ):
        self.title, self.pixels = title, pixels
        self.labels, self.classes = labels.astype(np.int64), classes

    def read(self, i: int) -> tuple[Image.Image, int]:
        one = self.pixels[i]
        picture = np.ascontiguousarray(one.transpose(1, 2, 0)) if one.ndim == 3 else one
        return Image.fromarray(picture).convert("RGB"), int(self.labels[i])

    def name(self, i: int) -> str:
        return f"{self.title} {i}"

    def block(
        self, indices: Integer[np.ndarray, "B"]
    ) -> tuple[UInt8[np.ndarray, "B 3 H W"], Integer[np.ndarray, "B"]]:
        pixels = self.pixels[indices]
        if pixels.ndim == 3:
            pixels = pixels[:, None].repeat(3, 1)
        return pixels, self.labels[indices]

    def parts(self) -> list[np.ndarray]:
        return [self.pixels, self.labels]


class Some(Images):
    """A subset of another set, perhaps with other class numbers."""

    def __init__(
        self,
        images: Images,
        indices: Integer[np.ndarray, "N"],
        labels: Integer[np.ndarray, "N"] | None = None,
        classes: list[str] | None = None,
    ):
        self.images, self.indices = images, indices
        self.labels = images.labels[indices] if labels is None else labels
        self.classes = images.classes if classes is None else classes

    def read(self, i: int) -> tuple[Image.Image, int]:
        image, _ = self.images.read(int(self.indices[i]))
        return image, int(self.labels[i])

    def name(self, i: int) -> str:
        return self.images.name(int(self.indices[i]))

    def block(
        self, indices: Integer[np.ndarray, "B"]
    ) -> tuple[UInt8[np.ndarray, "B 3 H W"], Integer[np.ndarray, "B"]] | None:
        inner = self.images.block(self.indices[indices])
        return None if inner is None else (inner[0], self.labels[indices])

    def content(self, i: int) -> bytes:
        return self.images.content(int(self.indices[i]))

    def size(self, i: int) -> int:
        return self.images.size(int(self.indices[i]))

    def parts(self) -> list[np.ndarray]:
        return [*self.images.parts(), self.indices, self.labels]
