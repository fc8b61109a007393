"""Find and read the training and validation set at a path, in any supported layout.

    FOLDER/train/CLASS/*.jpg, FOLDER/val/CLASS/*.jpg     or FOLDER/CLASS/*.jpg, part of it held out
    FOLDER/train-*.tar, FOLDER/val-*.tar                 members KEY.jpg and KEY.cls (webdataset)
    FOLDER as written by datasets.save_to_disk           Hugging Face
    FOLDER/train-images-idx3-ubyte(.gz), ...             as MNIST comes
    FILE.csv                                             columns path, label and perhaps split
    FOLDER/data_batch_1.bin, ...                         CIFAR-10 (see saccade.data.cifar)
    mnist, solar, fashion, cifar10                       images that come in a package

Every layout is read into a `Listing`: items with the names of their classes. The rules about
classes are here, for all layouts.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data import cifar, folder, packaged, shards, table
from saccade.data.convert import layout
from saccade.data.findings import no_files
from saccade.data.images import Files, Images, Listing, Some, Unreadable
from saccade.recipes.recipe import Data
from saccade.spelling import nearest

__all__ = [
    "Images",
    "Splits",
    "Unreadable",
    "aligned",
    "divided",
    "every",
    "fewer",
    "find",
    "in_words",
    "parted",
]

PACKAGED = ("mnist", "solar", "fashion", "cifar10")
VALIDATION = ("val", "validation", "valid", "test")
KNOWN = "train and val folders of class folders, class folders, train-*.tar and val-*.tar, or a csv"


@dataclass(frozen=True)
class Splits:
    """The training and the validation set, with one list of classes for both.

    With `data.tune`, `val` is held out of the training images, and `final` is the data set's own
    validation set, which is evaluated once, at the end of the run.
    """

    train: Images
    val: Images
    classes: list[str]
    about: str
    """One line: what it is and how many."""
    warnings: list[str] = field(default_factory=list)
    """Faults that do not stop a run, in sentences."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a trained model must know about the data beside the classes."""
    findings: dict[str, list[str]] = field(default_factory=dict)
    """Every case behind the warnings."""
    final: Images | None = None


def in_words(what: str, train: Images, val: Images, final: Images | None, classes: int = 0) -> str:
    """One line: the data set, and the numbers of its images."""
    end = f", {classes} classes" if classes else ""
    if final is None:
        return f"{what}: {len(train)} images to train on, {len(val)} to validate{end}"
    return (
        f"{what}: {len(train)} images to train on, {len(val)} held out of them to choose the best "
        f"model by, {len(final)} to validate at the end{end}"
    )


def find(path: str, data: Data, seed: int = 0) -> Splits:
    """The images at a path or of a packaged name; a layout that cannot be used is refused."""
    ready = _arrays(path)
    if ready is None:
        return divided(_listing(Path(path)), data, seed)
    what, train, val = ready
    final = val if data.tune else None
    if val is None or final is not None:
        train, val = hold_out(train, data.holdout, seed)
    return _ready(what, train, val, final)


def every(path: str, classes: list[str]) -> Images:
    """The images to evaluate a trained model on: a validation set, or else all images at the path.

    Labels are numbered as in the model; a class that the model does not know is refused.
    """
    ready = _arrays(path)
    if ready is not None:
        _, train, val = ready
        return aligned(train if val is None else val, classes)
    listing = _listing(Path(path))
    paths = listing.train if listing.val is None else listing.val
    names = _ordered({name for _, name in paths})
    if not names:
        raise ValueError(f"{listing.what}: no images to test on; wanted: {KNOWN}")
    labels = [names.index(name) for _, name in paths]
    return aligned(listing.make([item for item, _ in paths], labels, names), classes)


def _arrays(path: str) -> tuple[str, Images, Images | None] | None:
    """Data sets whose classes have numbers already: packaged ones, MNIST-like files, CIFAR-10."""
    if path == "mnist":
        return path, packaged.mnist(), None
    if path == "solar":
        return path, packaged.solar(), None
    if path == "fashion":
        return path, *packaged.fashion()
    if path == "cifar10":
        return path, *cifar.find()
    place = Path(path)
    if place.is_dir() and packaged.has_idx(place):
        return place.resolve().name, *packaged.idx(place)
    sets = cifar.inside(place)
    if sets is not None:
        return place.resolve().name, *sets
    return None


def _listing(place: Path) -> Listing:
    if place.is_file():
        if place.suffix != ".csv":
            raise ValueError(f"{str(place)!r} is no data set; give a csv file or a folder: {KNOWN}")
        return _manifest(place)
    if not place.is_dir():
        close = nearest(str(place), PACKAGED)
        raise FileNotFoundError(
            f"no folder or file {str(place)!r}; check the path, or give a set that comes in a "
            f"package: {', '.join(PACKAGED)} (did you mean {close!r}?)"
        )
    if table.is_table(place):
        return table.listing(place)
    tars = sorted(place.glob("*.tar*"))
    if any(path.is_file() for path in tars):
        return shards.listing(place, tars)
    return _folders(place)


# -- folders --------------------------------------------------------------------------------


def _folders(place: Path) -> Listing:
    if advice := layout.advice(place):
        raise ValueError(advice)
    inside = {part.name: part for part in _subfolders(place)}
    if not inside and not any(place.iterdir()):
        raise ValueError(f"{str(place)!r} is empty; put a folder of images for each class there")
    split = {
        name for name in ("train", *VALIDATION) if name in inside and _subfolders(inside[name])
    }
    val = next((name for name in VALIDATION if name in split), None)
    others: list[str] = []
    train, empty = (
        _classes(place, "train" if "train" in split else "", others)
        if ("train" in split or not split)
        else ([], [])
    )
    val_classes = _classes(place, val, others)[0] if val else None
    folder.Inside(place).check(
        (name for name, _ in [*train, *(val_classes or ())]), repr(str(place))
    )
    if not train and not val:
        raise ValueError(f"no images in folders of classes below {str(place)!r}; wanted: {KNOWN}")
    return Listing(
        what=place.resolve().name,
        train=train,
        val=val_classes,
        make=lambda items, labels, classes: Files(place, items, labels, classes),
        warnings=[
            *([f"no training images in {_in_words(empty)}"] if empty else []),
            *no_files(others),
        ],
    )


def _subfolders(place: Path) -> list[Path]:
    return sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))


def _classes(place: Path, split: str, others: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """A split's picture files with their classes, in order, and classes without a picture.

    Entries that are no ordinary files are added to `others`.
    """
    pairs, empty = [], []
    for inside in _subfolders(place / split):
        inner = f"{split}/{inside.name}" if split else inside.name
        names, odd = folder.contents(inside, links=True)
        pairs += [(f"{inner}/{name}", inside.name) for name in names]
        others += [f"{inner}/{name}" for name in odd]
        if not names:
            empty.append(inside.name)
    return pairs, empty


# -- a csv file -----------------------------------------------------------------------------


def _manifest(place: Path) -> Listing:
    try:
        return _listed_in(place)
    except csv.Error as error:
        raise ValueError(f"{str(place)!r} is no csv file: {error}") from error


def _listed_in(place: Path) -> Listing:
    with io.StringIO(folder.text(place), newline="") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        columns = [name.strip() for name in rows.fieldnames or ()]
        for column in ("path", "label"):
            if column not in columns:
                raise ValueError(
                    f"{str(place)!r}: its first line must name the columns path, label and perhaps "
                    f"split; it says {', '.join(columns) or 'nothing'}"
                )
        rows.fieldnames = columns
        parts: dict[str, list[tuple[str, str]]] = {"train": [], "val": []}
        for row in rows:
            name, label = ((row[key] or "").strip() for key in ("path", "label"))
            split = (row.get("split") or "train").strip().lower()
            if not name or not label:
                raise ValueError(f"{str(place)!r}, line {rows.line_num}: no path or no label")
            if split not in ("train", *VALIDATION):
                raise ValueError(
                    f"{str(place)!r}, line {rows.line_num}: split must be train or val, "
                    f"got {split!r}"
                )
            parts["train" if split == "train" else "val"].append((name, label))
    names = [name for part in parts.values() for name, _ in part]
    folder.Inside(place.parent).check(names, repr(str(place)))
    first = [name for name, _ in parts["train"][:20]]
    if first and not any((place.parent / name).is_file() for name in first):
        raise FileNotFoundError(
            f"{str(place)!r} names {first[0]!r}, but there is no such file; "
            "paths are taken from the csv file's folder"
        )
    return Listing(
        what=place.name,
        train=parts["train"],
        val=parts["val"] if "split" in columns and parts["val"] else None,
        make=lambda items, labels, classes: Files(place.parent, items, labels, classes),
    )


# -- classes --------------------------------------------------------------------------------


def divided(listing: Listing, data: Data, seed: int) -> Splits:
    """Number the classes and check them, then make both sets."""
    if not listing.train:
        raise ValueError(f"{listing.what}: no images to train on; wanted: {KNOWN}")
    present = {name for _, name in listing.train}
    classes = [name for name in listing.order or _ordered(present) if name in present]
    numbers = {name: i for i, name in enumerate(classes)}
    for _, name in listing.val or ():
        if name not in numbers:
            raise ValueError(
                f"{listing.what}: class {name!r} has validation images but none to train on; "
                f"did you mean {nearest(name, classes)!r}?"
            )

    def make_images(files: Sequence[tuple[Any, str]]) -> Images:
        return listing.make(
            [item for item, _ in files], [numbers[name] for _, name in files], classes
        )

    if listing.val is None:
        train, val = hold_out(make_images(listing.train), data.holdout, seed)
        return _ready(listing.what, train, val, None, listing.warnings)
    if not listing.val:
        raise ValueError(
            f"{listing.what}: the validation set is empty; add images, or remove it to have "
            "data.holdout of the training images held out"
        )
    train, val, final = make_images(listing.train), make_images(listing.val), None
    if data.tune:
        final = val
        train, val = hold_out(train, data.holdout, seed)
    return _ready(listing.what, train, val, final, listing.warnings)


def _ready(
    what: str, train: Images, val: Images, final: Images | None, warnings: Sequence[str] = ()
) -> Splits:
    classes = train.classes
    if len(classes) < 2:
        raise ValueError(
            f"{what}: only one class, {classes[0]!r}; there is nothing to tell apart, "
            "so add a folder (or label) for a second one"
        )
    counts = np.bincount(val.labels, minlength=len(classes))
    without = [name for name, count in zip(classes, counts, strict=True) if not count]
    more = [f"no validation images of {_in_words(without)}"] if without else []
    about = in_words(what, train, val, final, len(classes))
    return Splits(train, val, classes, about, [*warnings, *more], final=final)


def hold_out(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    """Split off the same share of each class, by the seed; a lone image stays for training."""
    if not 0 < share < 1:
        raise ValueError(f"data.holdout: a share between 0 and 1, got {share}; try 0.1")
    in_validation = np.zeros(len(images), bool)
    for c in range(len(images.classes)):
        of_class = np.flatnonzero(images.labels == c)
        count = min(max(1, round(share * len(of_class))), max(0, len(of_class) - 1))
        in_validation[np.random.default_rng((seed, c)).permutation(of_class)[:count]] = True
    if not in_validation.any():
        raise ValueError("one image a class leaves none to validate; add images or a val folder")
    return Some(images, np.flatnonzero(~in_validation)), Some(images, np.flatnonzero(in_validation))


def fewer(splits: Splits, share: float) -> Splits:
    """The sets with this share of each class's training images, the first ones; at least one."""
    if share == 1:
        return splits
    images = splits.train
    if not isinstance(images, Images) or not share:
        raise ValueError(
            f"data.share: a share of images that have a class each, got {share}; leave it at 1"
        )
    of_classes = [np.flatnonzero(images.labels == c) for c in range(len(images.classes))]
    shares = [own[: max(1, round(share * len(own)))] for own in of_classes]
    train = Some(images, np.sort(np.concatenate(shares)))
    return replace(splits, train=train, about=f"{splits.about}; {len(train)} of them are used")


def parted(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split `count` images without classes: positions to train on, and positions held out."""
    if not 0 < share < 1:
        raise ValueError(f"data.holdout: a share between 0 and 1, got {share}; try 0.1")
    order = np.random.default_rng((seed, 0)).permutation(count)
    few = min(max(1, round(share * count)), count - 1)
    return np.sort(order[few:]).tolist(), np.sort(order[:few]).tolist()


def aligned(images: Images, classes: list[str]) -> Images:
    """The images with labels as numbered in another list of classes, such as a trained model's."""
    if images.classes == classes:
        return images
    renumbered = np.array(numbers_in(classes, images.classes))[images.labels]
    return Some(images, np.arange(len(images)), renumbered, classes)


def numbers_in(classes: list[str], names: Sequence[str]) -> list[int]:
    """The number of each name in a model's list of classes; an unknown name is refused."""
    numbers = {name: i for i, name in enumerate(classes)}
    for name in names:
        if name not in numbers:
            raise ValueError(
                f"class {name!r} is not among the model's {len(classes)} ({_in_words(classes)}); "
                f"did you mean {nearest(name, classes)!r}?"
            )
    return [numbers[name] for name in names]


def _ordered(names: set[str]) -> list[str]:
    """By name; by value where all are whole numbers, so that 10 follows 9."""
    if all(name.isascii() and name.isdigit() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _in_words(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
