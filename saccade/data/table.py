"""Read a Hugging Face dataset on disk, as `save_to_disk` writes it (needs `datasets`)."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saccade.data import folder, picture
from saccade.data.folder import Inside
from saccade.data.images import Images, Listing

SPLITS = ("validation", "val", "valid", "test")


class Table(Images):
    """Rows with a picture; `rows` is one of datasets' own, mapped from disk."""

    def __init__(
        self,
        title: str,
        rows: Any,
        column: str,
        row_numbers: list[int],
        labels: list[int],
        classes: list[str],
        inside: Inside | None = None,
    ):
        self.inside = inside
        self.title, self.rows, self.column = title, rows, column
        self.row_numbers = np.asarray(row_numbers, np.int64)
        self.labels, self.classes = np.asarray(labels, np.int64), classes

    def read(self, i: int) -> tuple[Image.Image, int]:
        name = self.name(i)
        try:
            cell = self.rows[int(self.row_numbers[i])][self.column]
        except (OSError, ValueError) as error:
            raise picture.Unreadable(name, str(error)) from error
        if cell is None:
            raise picture.Unreadable(name, "the cell is empty")
        content, path = cell["bytes"], cell["path"]
        if content is not None:
            return picture.rgb(io.BytesIO(content), name), int(self.labels[i])
        if self.inside is not None and not self.inside(path):
            raise picture.Unreadable(name, f"{path!r} lies outside of the data folder")
        return picture.rgb(path, name), int(self.labels[i])

    def name(self, i: int) -> str:
        return f"{self.title} row {self.row_numbers[i]}"

    def parts(self) -> list[np.ndarray]:
        return [self.row_numbers, self.labels]


def is_table(place: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (place / "dataset_dict.json").is_file() or (place / "state.json").is_file()


def listing(place: Path) -> Listing:
    """The pictures of the dataset, and their classes."""
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"{str(place)!r} is a Hugging Face dataset; reading it needs: pip install datasets"
        ) from error
    _check_files(place)
    try:
        loaded = datasets.load_from_disk(str(place))
    except Exception as error:  # of a damaged one: whatever pyarrow stumbles over
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(
            f"{str(place)!r}: this Hugging Face dataset cannot be read ({why}); write it anew"
        ) from error
    parts = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in parts:
        raise ValueError(f"{str(place)!r} has no split 'train', only {', '.join(parts)}; add one")
    split = next((name for name in SPLITS if name in parts), "")
    features = parts["train"].features
    image = _column(place, features, datasets.Image, "image")
    label = _column(place, features, datasets.ClassLabel, "label")
    names = getattr(features[label], "names", None)
    raw = {
        k: parts[k]
        .with_format(None)
        .select_columns([image, label])  # others might be decoded, and name files or addresses
        .cast_column(image, datasets.Image(decode=False))
        for k in ("train", split)
        if k
    }
    splits, warnings = {}, []
    for k, rows in raw.items():
        labels = list(enumerate(rows[label]))
        labelled_rows = [(i, v) for i, v in labels if v is not None and v != -1]  # -1: kept secret
        splits[k] = [((k, i), names[v] if names else str(v)) for i, v in labelled_rows]
        if len(labelled_rows) < len(labels):
            warnings.append(
                f"{k}: {len(labels) - len(labelled_rows)} rows have no label and are left out"
            )

    def make(items: list[tuple[str, int]], labels: list[int], classes: list[str]) -> Images:
        k = items[0][0]
        rows = [i for _, i in items]
        return Table(f"{place.name} {k}", raw[k], image, rows, labels, classes, Inside(place))

    what = place.resolve().name
    return Listing(what, splits["train"], splits.get(split), make, order=names, warnings=warnings)


def _check_files(place: Path) -> None:
    """Refuse a dataset that names files outside of its folder."""
    inside, parts = Inside(place), [place]
    if (place / "dataset_dict.json").is_file():
        splits = _class_names(place / "dataset_dict.json", lambda plain: [*plain["splits"]])
        parts = [place.absolute() / split for split in splits]
    for part in parts:
        state = part.absolute() / "state.json"
        inside.check([state, state.with_name("dataset_info.json")], repr(str(place)))
        if state.is_file():
            names = _class_names(
                state, lambda plain: [one["filename"] for one in plain["_data_files"]]
            )
            inside.check([state.parent / name for name in names], repr(str(state)))


def _class_names(file: Path, names: Callable[[Any], list[Any]]) -> list[str]:
    """The names that a JSON file of a dataset holds."""
    try:
        names_list = names(json.loads(folder.text(file)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # the package says what is wrong with it
    return [name for name in names_list if isinstance(name, str)]


def _column(place: Path, features: Any, kind: type, usual: str) -> str:
    """The column of a kind, or else one that has the usual name."""
    for name, feature in features.items():
        if isinstance(feature, kind):
            return name
    if usual in features and usual == "label":
        return usual
    raise ValueError(
        f"{str(place)!r} has no column of {usual}s among {', '.join(features)}; "
        f"cast one to datasets.{kind.__name__}"
    )
