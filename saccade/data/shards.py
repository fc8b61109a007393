"""Tar shards in webdataset's layout: members KEY.jpg and KEY.cls (or KEY.json with a label).

The members' places are listed once; an image is then one read at its offset, so shards are as
random access as files, and no file stays open for a worker to inherit.
"""

import io
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from saccade.data import picture
from saccade.data.images import Images, Strings

TRAIN = re.compile(r"(^|[-_])train(ing)?([-_]|\.)", re.IGNORECASE)
VAL = re.compile(r"(^|[-_])(val|valid|validation|test)([-_]|\.)", re.IGNORECASE)


class Member(NamedTuple):
    """Where a picture lies."""

    shard: int
    offset: int
    size: int
    name: str


class Shards(Images):
    """Pictures inside tar files."""

    def __init__(
        self, paths: Sequence[Path], items: list[Member], labels: list[int], classes: list[str]
    ):
        self.paths = list(paths)
        self.places = np.array([item[:3] for item in items], np.int64).reshape(-1, 3)
        self.names = Strings(item.name for item in items)
        self.labels, self.classes = np.asarray(labels, np.int64), classes

    def read(self, i: int) -> tuple[Image.Image, int]:
        shard, offset, size = map(int, self.places[i])
        try:
            with self.paths[shard].open("rb") as file:
                file.seek(offset)
                content = file.read(size)
        except OSError as error:
            raise picture.Unreadable(self.name(i), str(error)) from error
        return picture.rgb(io.BytesIO(content), self.name(i)), int(self.labels[i])

    def name(self, i: int) -> str:
        return f"{self.paths[self.places[i, 0]]}:{self.names[i]}"


def listing(place: Path, tars: Sequence[Path]) -> tuple[Any, ...]:
    """The fields of a `Listing`: what lies in a folder's shards."""
    packed = [path for path in tars if path.suffix != ".tar"]
    if packed:
        raise ValueError(f"{str(packed[0])!r} is compressed, which allows no random access; unpack")
    paths = [path for path in tars if TRAIN.search(path.name) or VAL.search(path.name)]
    warnings: list[str] = []
    parts: dict[bool, list[tuple[Member, str]]] = {True: [], False: []}
    for number, path in enumerate(paths):
        parts[bool(TRAIN.search(path.name))] += _members(number, path, warnings)
    if not parts[True]:
        raise ValueError(
            f"{str(place)!r} has tar files, but none named train-*.tar holds images with a label "
            "(members KEY.jpg and KEY.cls); rename or repack them"
        )
    val = parts[False] or None

    def make(items: list[Member], labels: list[int], classes: list[str]) -> Images:
        return Shards(paths, items, labels, classes)

    return place.resolve().name, parts[True], val, make, None, warnings


def _members(number: int, path: Path, warnings: list[str]) -> list[tuple[Member, str]]:
    """The shard's pictures with their classes, and what is wrong with it."""
    pictures: dict[str, Member] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                key, _, ending = base.partition(".")
                if not member.isfile() or not key:
                    continue
                key, ending = f"{folder}/{key}", f".{ending.lower()}"
                if ending in picture.ENDINGS:
                    pictures[key] = Member(number, member.offset_data, member.size, member.name)
                elif ending in (".cls", ".json") and (file := tar.extractfile(member)):
                    label = _label(ending, file.read())
                    if label is not None:
                        labels[key] = label
    except (tarfile.TarError, OSError) as error:
        warnings.append(f"{path.name} is broken after {len(pictures)} images ({error})")
    without = pictures.keys() - labels.keys()
    if without:
        warnings.append(f"{path.name}: {len(without)} images have no label and are left out")
    return [(member, labels[key]) for key, member in pictures.items() if key in labels]


def _label(ending: str, content: bytes) -> str | None:
    """A class's name or number; None where there is none."""
    text = content.decode(errors="replace").strip()
    if ending == ".json":
        try:
            told = json.loads(text)
        except ValueError:
            return None
        text = next((str(told[k]) for k in ("label", "cls", "class") if k in told), "")
    return text or None
