"""Find and read the training and validation set of a folder of images and masks.

    FOLDER/images/{train,val}/NAME.jpg              or images/NAME.jpg, part of it held out
    FOLDER/masks/{train,val}/NAME.png               or semantic, labels, annotations
    FOLDER/classes.json                             or in the folder of masks

    {"classes": ["sky", "road", ...], "ignore_index": 255}      ids 0, 1, ...
    {"classes": {"1": "person", "200": "rug"}, "ignore_index": 0}

ADE20K's own layout (images/training, annotations/training, objectInfo150.txt) is the same with
ids 1 to 150, of which 0 is no class.

A mask is a PNG with one id a pixel, grey or with a palette. In memory, classes are 0, 1, ..., and
IGNORED marks pixels that loss and figures leave out: unlabelled ones, and ids without a class.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from saccade.data import folder, picture
from saccade.data.convert.run import masks_advice
from saccade.data.datasets import Splits, in_words, numbers_in, parted
from saccade.data.findings import no_files
from saccade.data.images import Images, Strings, Unreadable, size_of
from saccade.recipes.recipe import Data

IGNORED = 255
ADE20K = 150  # classes
IDS = 2**16  # a mask may have 16 bits
FOLDERS = ("masks", "semantic", "labels", "annotations")
SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
CHECKED = 2000  # masks of a set that are opened before a run; of more, so many evenly spaced ones
KNOWN = "images/{train,val}/NAME.jpg, masks/{train,val}/NAME.png and classes.json"


@dataclass(frozen=True)
class Legend:
    """What the ids of masks mean."""

    names: list[str]
    ids: list[int]
    """Of each class, in the masks."""
    ignored: tuple[int, ...]
    """Ids that stand for no class: their pixels are ignored."""

    def table(self) -> UInt8[np.ndarray, "ids"]:
        """From a mask's id to the class's number, or IGNORED."""
        table = np.full(IDS, IGNORED, np.uint8)
        table[self.ids] = np.arange(len(self.ids))
        return table


class Masks(Images):
    """Pictures with a class for each pixel."""

    warnings: tuple[str, ...] = ()
    """Faults of the set, in sentences."""
    pixels: tuple[int, ...] = ()
    """How many each class has in the masks that were looked at before a run."""

    def __init__(
        self,
        root: Path,
        images: Sequence[str],
        masks: Sequence[str],
        legend: Legend,
        table: UInt8[np.ndarray, "ids"] | None = None,
        classes: list[str] | None = None,
    ):
        self.root, self.legend = root, legend
        self.images, self.masks = Strings(images), Strings(masks)
        self.table = legend.table() if table is None else table
        self.classes = legend.names if classes is None else classes
        self.labels = np.zeros(len(images), np.int64)  # an image has no one class

    def read(self, i: int) -> tuple[Image.Image, UInt8[np.ndarray, "H W"]]:
        photo = picture.rgb(self.root / self.images[i], self.name(i))
        ids = self.ids(i)
        if ids.shape != (photo.height, photo.width):
            H, W = ids.shape
            raise Unreadable(
                self.name(i),
                f"its mask is {W} x {H} pixels and the image {photo.width} x {photo.height}",
            )
        return photo, self.table[ids]

    def ids(self, i: int) -> Integer[np.ndarray, "H W"]:
        """The mask as it is on disk."""
        name = str(self.root / self.masks[i])
        with picture.open_image(name, name) as file:
            if len(file.getbands()) > 1:
                raise ValueError(f"a mask of mode {file.mode}; it takes one id a pixel")
            return np.asarray(file, np.int64).clip(0, IDS - 1)

    def name(self, i: int) -> str:
        return str(self.root / self.images[i])

    def content(self, i: int) -> bytes:
        return b"".join((self.root / names[i]).read_bytes() for names in (self.images, self.masks))

    def size(self, i: int) -> int:
        image, mask = (size_of(str(self.root / s[i])) for s in (self.images, self.masks))
        return image << 32 | mask & 0xFFFFFFFF  # one may grow by what the other shrinks

    def parts(self) -> list[np.ndarray]:
        strings = (self.images, self.masks)
        return [part for s in strings for part in (s.text, s.ends)] + [self.table]

    def some(self, indices: Sequence[int]) -> "Masks":
        images, masks = ([s[i] for i in indices] for s in (self.images, self.masks))
        return Masks(self.root, images, masks, self.legend, self.table, self.classes)


def find(path: str, data: Data, seed: int = 0) -> Splits:
    """The images and masks at a path; oddities become warnings, unusable sets are refused."""
    place, legend = Path(path), _legend(Path(path))
    findings: dict[str, list[str]] = {}
    train, val = (_pairs(place, split, legend, findings) for split in SPLITS)
    if train is None:
        train = _pairs(place, "", legend, findings)
    if train is None and val is not None:
        raise ValueError(
            f"{place.name}: images to validate on but none to train on; "
            f"put these into images/train, or into images without a split"
        )
    if train is None or not len(train):
        raise ValueError(f"{place.name}: no image has a mask of its name; wanted: {KNOWN}")
    final = val if data.tune else None
    if val is None or final is not None:
        train, val = _held_out(train, data.holdout, seed)
    if not len(val if final is None else final):
        raise ValueError(f"{place.name}: no validation image has a mask; wanted: {KNOWN}")
    warnings = _missing_sentences(findings)
    (train, own), (val, more) = (_usable(part, findings, data.bad) for part in (train, val))
    warnings += own + more
    if final is not None:
        final, own = _usable(final, findings, data.bad)
        warnings += own
    about = in_words(place.resolve().name, train, val, final, len(legend.names))
    if len(legend.ids) == ADE20K and not _written_in(place):
        about += " (read as ADE20K, where 0 is no class; classes.json would say otherwise)"
    notes = {"ids": legend.ids, "ignored": list(legend.ignored), "pixels": list(train.pixels)}
    return Splits(train, val, legend.names, about, warnings, notes, findings, final)


def every(path: str, classes: list[str]) -> Masks:
    """The images to evaluate a model on: a validation set, or else all that have a mask."""
    place, legend = Path(path), _legend(Path(path))
    for split in ("val", "", "train"):
        findings: dict[str, list[str]] = {}
        images = _pairs(place, split, legend, findings)
        if images is not None and len(images):
            images.warnings = (*_missing_sentences(findings), *_checked(images, findings)[0])
            return aligned(images, classes)
    raise ValueError(f"{place.name}: no image has a mask of its name; wanted: {KNOWN}")


def _usable(images: Masks, findings: dict[str, list[str]], bad: float) -> tuple[Masks, list[str]]:
    """The set without unusable masks, and sentences about them; too many of them are refused."""
    sentences, unusable = _checked(images, findings)
    if len(unusable) > bad * len(images):
        raise ValueError(
            f"{len(unusable)} of {len(images)} masks cannot be used, more than the {bad:.1%} that "
            f"data.bad allows; repair or remove them: {'; '.join(sentences)}"
        )
    left_out = set(unusable)
    rest = [i for i in range(len(images)) if i not in left_out]
    usable = images.some(rest) if left_out else images
    usable.pixels = images.pixels
    return usable, sentences


def aligned(images: Masks, classes: list[str]) -> Masks:
    """The images with masks as numbered in another list of classes, such as a trained model's."""
    if images.classes == classes:
        return images
    to = np.full(IGNORED + 1, IGNORED, np.uint8)
    to[: len(images.classes)] = numbers_in(classes, images.classes)
    every_one = range(len(images))
    inner = images.some(every_one)
    inner.table, inner.classes, inner.warnings = to[images.table], classes, images.warnings
    return inner


# -- files ----------------------------------------------------------------------------------


def _pairs(place: Path, split: str, legend: Legend, findings: dict[str, list[str]]) -> Masks | None:
    """Images of a split with their masks, by name; None if there is no such split."""
    for folder_name in SPLITS[split] if split else ("",):
        images = place / "images" / folder_name
        masks = _masks(place) / folder_name
        if folder_name and not images.is_dir():
            continue
        photos = _files(images, picture.ENDINGS, bool(folder_name), findings)
        mask_files = _files(masks, (".png",), bool(folder_name), findings)
        if not folder_name and not photos:
            return None
        lone = [str(photos[key].relative_to(place)) for key in photos if key not in mask_files]
        blank = [str(mask_files[key].relative_to(place)) for key in mask_files if key not in photos]
        for kind, names in (("no mask", lone), ("no image", blank)):
            if names:
                findings.setdefault(kind, []).extend(names)
        both = [key for key in photos if key in mask_files]
        pictures, maps = (
            [str(files[key].relative_to(place)) for key in both] for files in (photos, mask_files)
        )
        folder.Inside(place).check([*pictures, *maps], repr(str(place)))
        return Masks(place, pictures, maps, legend)
    return None


def _files(
    place: Path, endings: Sequence[str], deep: bool, findings: dict[str, list[str]]
) -> dict[str, Path]:
    """Files below a folder by their path without the ending, in order."""
    names, others = folder.contents(place, endings, deep=deep)
    if others:
        findings.setdefault("no file", []).extend(str(place / name) for name in others)
    return {str(path.with_suffix("")): place / path for path in sorted(map(Path, names))}


def _masks(place: Path) -> Path:
    """The folder of masks: the first of those known that holds a PNG."""
    for name in FOLDERS:
        if next((place / name).rglob("*.png"), None) is not None:
            return place / name
    folder_names = ", ".join(FOLDERS)
    raise ValueError(
        f"{str(place)!r} has no masks: no PNG in any folder of {folder_names}; {KNOWN}"
    )


def _held_out(images: Masks, share: float, seed: int) -> tuple[Masks, Masks]:
    if 0 < share < 1 and len(images) < 2:
        raise ValueError(
            "one image with a mask leaves none to validate; add images or a val folder"
        )
    train, val = parted(len(images), share, seed)
    return images.some(train), images.some(val)


def _missing_sentences(findings: dict[str, list[str]]) -> list[str]:
    sentences = {
        "no mask": "{n} images have no mask and are left out, such as {first!r}",
        "no image": "{n} masks have no image and are left out, such as {first!r}",
    }
    missing = [
        sentences[kind].format(n=len(names), first=names[0])
        for kind, names in findings.items()
        if kind in sentences
    ]
    return missing + no_files(findings.get("no file", ()))


# -- classes --------------------------------------------------------------------------------


def _legend(place: Path) -> Legend:
    if not place.is_dir():
        raise FileNotFoundError(f"no folder {str(place)!r}; check the path")
    if not (place / "images").is_dir():
        if advice := masks_advice(place):
            raise ValueError(advice)
        raise ValueError(f"{str(place)!r} has no folder 'images'; wanted: {KNOWN}")
    file = _written_in(place)
    if file is not None:
        return _legend_in(file)
    theirs = all((place / part / "training").is_dir() for part in ("images", "annotations"))
    if (place / "objectInfo150.txt").is_file() or theirs:
        return _ade20k(place / "objectInfo150.txt")
    raise ValueError(
        f"{str(place)!r} has no classes.json, so nobody knows what the masks mean; write one: "
        '{"classes": ["sky", "road"], "ignore_index": 255}'
    )


def _written_in(place: Path) -> Path | None:
    """The file of a folder that says what the ids mean."""
    files = (folder / "classes.json" for folder in (place, _masks(place)))
    return next((file for file in files if file.is_file()), None)


def _legend_in(file: Path) -> Legend:
    """classes.json, checked."""
    where = str(file)
    try:
        plain = json.loads(folder.text(file))
        classes, ignored = plain["classes"], plain.get("ignore_index", IGNORED)
        if not isinstance(classes, list | dict):
            raise TypeError(f"classes is {classes!r:.40}")
        pairs = classes.items() if isinstance(classes, dict) else enumerate(classes)
        ignored = tuple(map(int, ignored if isinstance(ignored, list) else [ignored]))
        names = {int(key): str(name) for key, name in pairs if int(key) not in ignored}
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise ValueError(
            f'{where!r}: wanted {{"classes": ["sky", "road"], "ignore_index": 255}}, '
            f"with names in the order of their ids or by id ({type(error).__name__}: {error})"
        ) from error
    return _legend_of(where, names, ignored)


def _ade20k(file: Path) -> Legend:
    """The 150 classes of ADE20K's challenge; their names are in a file that comes with it."""
    names = {i: f"class {i}" for i in range(1, ADE20K + 1)}
    if file.is_file():
        lines = [line.split("\t") for line in folder.text(file).splitlines()[1:] if line.strip()]
        try:
            names = {int(line[0]): line[-1].split(",")[0].strip() for line in lines}
        except ValueError as error:
            raise ValueError(f"{str(file)!r} is not ADE20K's list of classes ({error})") from error
        names = _apart(names)
    return _legend_of(str(file), names, (0,))


def _apart(names: dict[int, str]) -> dict[int, str]:
    """ADE20K's class names made unique: a name that comes twice gets its id appended."""
    earlier: set[str] = set()
    for i, name in names.items():
        names[i] = f"{name} {i}" if name in earlier else name
        earlier.add(name)
    return names


def _legend_of(where: str, classes: dict[int, str], ignored: tuple[int, ...]) -> Legend:
    ids, names = sorted(classes), [classes[i] for i in sorted(classes)]
    if not 2 <= len(names) <= IGNORED:
        raise ValueError(f"{where!r}: from 2 to {IGNORED} classes, got {len(names)}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where!r}: two classes are called {twice!r}; tell them apart")
    if ids[0] < 0 or ids[-1] >= IDS:
        raise ValueError(f"{where!r}: ids go from 0 to {IDS - 1}, got {ids[0]} to {ids[-1]}")
    return Legend(names, ids, ignored)


# -- looking through the masks before a run ---------------------------------------------------
# Sizes that do not fit, and ids that no class has. Nothing is lost by it: an id without a class is
# ignored by loss and figures, and an image whose mask does not fit is left out and listed.


class MaskFault(NamedTuple):
    """The faults of one image's mask."""

    broken: str = ""
    misfit: str = ""
    unknown: tuple[tuple[int, int], ...] = ()
    """Ids that no class has, and of how many pixels."""
    pixels: np.ndarray | int = 0
    """Of each class; 0 where the mask cannot be used."""


def _checked(masks: Masks, findings: dict[str, list[str]]) -> tuple[list[str], list[int]]:
    """Sentences about a set's masks, and the numbers of unusable ones; fills `findings`."""
    count = min(len(masks), CHECKED)
    indices = [i * len(masks) // count for i in range(count)]
    with ThreadPoolExecutor(4) as pool:
        looks = list(pool.map(lambda i: _look(masks, i), indices))
    total = np.zeros(len(masks.legend.ids), np.int64) + sum(one.pixels for one in looks)
    masks.pixels = tuple(total.tolist())
    lists = {"unreadable mask": [], "another size": [], "unknown ids": []}
    ids: dict[int, int] = {}
    unusable = [i for i, one in zip(indices, looks, strict=True) if one.broken or one.misfit]
    for i, one in zip(indices, looks, strict=True):
        name = masks.images[i]
        if one.broken:
            lists["unreadable mask"].append(f"{name}: {one.broken}")
        if one.misfit:
            lists["another size"].append(f"{name}: {one.misfit}")
        if one.unknown:
            counts = ", ".join(f"id {i} ({n} pixels)" for i, n in one.unknown)
            lists["unknown ids"].append(f"{name}: {counts}")
        for key, n in one.unknown:
            ids[key] = ids.get(key, 0) + n
    if len(unusable) == count:
        first = (lists["another size"] + lists["unreadable mask"])[0]
        raise ValueError(f"no mask of {count} fits its image; {first}")
    for kind, lines in lists.items():
        if lines:
            findings.setdefault(kind, []).extend(lines)
    return _sentences(lists, ids, count, len(masks)), unusable


def _sentences(lists: dict[str, list[str]], ids: dict[int, int], count: int, of: int) -> list[str]:
    some = f" (of {count} looked at, {of} in all)" if count < of else ""
    sentences = []
    for kind, what in (
        ("unreadable mask", "masks cannot be read and their images are left out"),
        ("another size", "masks are of another size than their image, which is left out"),
    ):
        if lists[kind]:
            sentences.append(f"{len(lists[kind])} {what}{some}: {lists[kind][0]}")
    if ids:
        few = ", ".join(map(str, sorted(ids)[:8])) + (", ..." if len(ids) > 8 else "")
        sentences.append(
            f"{len(lists['unknown ids'])} masks hold ids that no class has ({few}): "
            f"{sum(ids.values())} pixels are not looked at{some}"
        )
    return sentences


def _look(masks: Masks, i: int) -> MaskFault:
    try:
        ids = masks.ids(i)
    except Unreadable as error:
        return MaskFault(broken=error.reason)
    misfit, size = "", picture.size(masks.name(i))  # None of what is none, as reading will say
    if size is not None and ids.shape[::-1] != size.upright:
        (W, H), (w, h) = ids.shape[::-1], size.upright
        misfit = f"mask {W} x {H}, image {w} x {h} pixels"
    counts = np.bincount(ids.ravel(), minlength=2**16)
    pixels = 0 if misfit else counts[masks.legend.ids]
    ignored_ids = [i for i in masks.legend.ignored if 0 <= i < len(counts)]
    counts[[*masks.legend.ids, *ignored_ids, 255]] = 0
    unknown = np.flatnonzero(counts)
    return MaskFault("", misfit, tuple((int(k), int(counts[k])) for k in unknown), pixels)
