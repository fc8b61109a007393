"""Tar shards in webdataset's layout: members KEY.jpg and KEY.cls (or KEY.json with a label).

The members' offsets are listed once. An image is then read at its offset, so that images can be
read in any order, and no file stays open for a worker to inherit.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from saccade.data import picture
from saccade.data.findings import no_files
from saccade.data.folder import Inside
from saccade.data.images import Images, Listing, Strings

TRAIN = re.compile(r"(^|[-_])train(ing)?([-_]|\.)", re.IGNORECASE)
LABEL = 2**16  # bytes of a label that are read
OCTAL = re.compile(rb"[0-7]+")
VAL = re.compile(r"(^|[-_])(val|valid|validation|test)([-_]|\.)", re.IGNORECASE)


Place = tuple[str, int, int]  # name, offset, size


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
        try:
            content = self.content(i)
        except OSError as error:
            raise picture.Unreadable(self.name(i), str(error)) from error
        return picture.rgb(io.BytesIO(content), self.name(i)), int(self.labels[i])

    def content(self, i: int) -> bytes:
        shard, offset, size = map(int, self.places[i])
        with self.paths[shard].open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def name(self, i: int) -> str:
        return f"{self.paths[self.places[i, 0]]}:{self.names[i]}"

    def parts(self) -> list[np.ndarray]:
        return [self.places, self.names.text, self.names.ends, self.labels]


def listing(place: Path, tars: Sequence[Path]) -> Listing:
    """The pictures in a folder's shards, and their classes."""
    Inside(place).check([path.name for path in tars], repr(str(place)))
    warnings = no_files([path.name for path in tars if not path.is_file()])
    tars = [path for path in tars if path.is_file()]
    packed = [path for path in tars if path.suffix != ".tar"]
    if packed:
        raise ValueError(f"{str(packed[0])!r} is compressed, which allows no random access; unpack")
    paths = [path for path in tars if TRAIN.search(path.name) or VAL.search(path.name)]
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

    return Listing(place.resolve().name, parts[True], val, make, warnings=warnings)


def _members(number: int, path: Path, warnings: list[str]) -> list[tuple[Member, str]]:
    """The shard's pictures with their classes; faults are added to `warnings`."""
    pictures: dict[str, Member] = {}
    labels: dict[str, str] = {}
    with path.open("rb") as file:
        for name, offset, size in _places(path, warnings):
            folder, _, base = name.rpartition("/")
            key, _, ending = base.partition(".")
            key, ending = f"{folder}/{key}", f".{ending.lower()}"
            if ending in picture.ENDINGS and base[0] != ".":
                pictures[key] = Member(number, offset, size, name)
            elif ending in (".cls", ".json"):
                labels[key] = _label(ending, os.pread(file.fileno(), min(size, LABEL), offset))
    members = [(member, labels[key]) for key, member in pictures.items() if labels.get(key)]
    if len(members) < len(pictures):
        without = len(pictures) - len(members)
        warnings.append(f"{path.name}: {without} images have no label and are left out")
    return members


def _places(path: Path, warnings: list[str]) -> list[Place]:
    """Names, offsets and sizes of a tar's files; of a broken tar, up to the fault."""
    places: list[Place] = []
    trouble = ""
    with path.open("rb") as file:
        end = path.stat().st_size
        try:
            places.extend(_plain(file.fileno(), end))
        except _Odd:
            places, trouble = _any(path)
        if os.pread(file.fileno(), 1024, max(0, end - 1024)).strip(b"\0") or not end:
            trouble = trouble or "it has no end"  # two empty blocks
    if trouble:
        warnings.append(f"{path.name} is broken after {len(places)} members ({trouble})")
    return [(name, offset, size) for name, offset, size in places if offset + size <= end]


def _any(path: Path) -> tuple[list[Place], str]:
    """The places that tarfile reads, and its error if there is one."""
    places: list[Place] = []
    try:
        with tarfile.open(path, "r:") as tar:
            places.extend((m.name, m.offset_data, m.size) for m in tar if m.isfile())
    except (tarfile.TarError, OSError) as error:
        return places, str(error)
    return places, ""


class _Odd(Exception):  # noqa: N818 (no error: tarfile will know)
    pass


def _plain(file: int, end: int) -> Iterator[Place]:
    """The files of a plain tar, about ten times as fast as tarfile, which reads the unusual ones.

    Of a header's 512 bytes: name 0-99, size in octal 124-135, kind 156, "ustar" from 257, and where
    a zero follows that, what comes before the name 345-499. Contents fill whole blocks of 512.
    """
    at = 0
    while at < end:
        head = os.pread(file, 512, at)
        if not head.strip(b"\0"):
            return
        kind, size = head[156:157], head[124:136].strip(b" \0")
        if len(head) < 512 or head[257:262] != b"ustar" or not OCTAL.fullmatch(size):
            raise _Odd
        start, size = at + 512, int(size, 8)
        at = start + -(-size // 512) * 512
        if at > end:
            raise _Odd
        if kind in (b"0", b"\0"):
            before = head[345:500].rstrip(b"\0") if head[262] == 0 else b""
            name = head[:100].rstrip(b"\0")
            yield os.fsdecode(before + b"/" + name if before else name), start, size
        elif kind in (b"x", b"g"):  # further fields; all but these do not matter here
            if re.search(rb"\d (path|size|GNU\.sparse[^=]*)=", os.pread(file, size, start)):
                raise _Odd
        elif kind != b"5":  # a folder
            raise _Odd


def _label(ending: str, content: bytes) -> str:
    """A class's name or number; empty where there is none."""
    text = content.decode(errors="replace").strip()
    if ending == ".json":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return ""
        value = value if isinstance(value, dict) else {"label": value}
        text = next((str(value[k]) for k in ("label", "cls", "class") if k in value), "")
    return text
