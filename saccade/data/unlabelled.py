"""Data sets of pictures without labels.

FOLDER/train/**/*.jpg, FOLDER/val/**/*.jpg     or FOLDER/**/*.jpg, part of it held out
"""

from collections.abc import Sequence
from pathlib import Path

from saccade.data import folder
from saccade.data.datasets import VALIDATION, Splits, in_words, parted
from saccade.data.findings import no_files
from saccade.data.images import Files
from saccade.recipes.recipe import Data


class Pictures(Files):
    """Picture files below a folder, without labels."""

    warnings: tuple[str, ...] = ()
    """Faults of the folder, in sentences."""

    def __init__(self, root: Path, names: Sequence[str]):
        super().__init__(root, names, [0] * len(names), [])

    def some(self, indices: Sequence[int]) -> "Pictures":
        return Pictures(self.root, [self.names[i] for i in indices])


def find(path: str, data: Data, seed: int = 0) -> Splits:
    """The pictures at a path; those of a val folder, or else some held out, to validate on."""
    place = _folder(path)
    warnings: list[str] = []
    train = _below(place, "train") if (place / "train").is_dir() else None
    val = next((_below(place, name) for name in VALIDATION if (place / name).is_dir()), None)
    final = val if data.tune and train is not None else None
    if train is None or val is None or final is not None:
        train = train or _below(place)
        warnings += train.warnings
        train, val = _held_out(train, data.holdout, seed)
    for part, what in ((train, "train"), (val, "validate")):
        if not len(part):
            raise ValueError(f"{path!r}: no picture to {what} on")
    about = in_words(place.resolve().name, train, val, final)
    warnings += [*train.warnings, *val.warnings, *(final.warnings if final else ())]
    return Splits(train, val, [], about, warnings, final=final)


def every(path: str) -> Pictures:
    """The pictures to evaluate a model on: a validation folder, or else all at the path."""
    place = _folder(path)
    val = next((name for name in VALIDATION if (place / name).is_dir()), "")
    images = _below(place, val)
    if not len(images):
        raise ValueError(f"{path!r}: no picture to test on")
    return images


def _folder(path: str) -> Path:
    if not Path(path).is_dir():
        raise FileNotFoundError(f"no folder {path!r}; give one with pictures in it")
    return Path(path)


def _below(place: Path, inside: str = "") -> Pictures:
    names, others = folder.contents(place / inside)
    images = Pictures(place, [str(Path(inside, name)) for name in names])
    folder.Inside(place).check((Path(inside, name) for name in names), repr(str(place)))
    images.warnings = tuple(no_files(others))
    return images


def _held_out(images: Pictures, share: float, seed: int) -> tuple[Pictures, Pictures]:
    if 0 < share < 1 and len(images) < 2:
        raise ValueError(f"{str(images.root)!r}: {len(images)} pictures; it takes two or more")
    train, val = parted(len(images), share, seed)
    return images.some(train), images.some(val)
