"""Write a COCO data set from boxes in VOC's xml or YOLO's text.

    OUT/annotations/instances_SPLIT.json    category ids from 1, in the order of the classes
    OUT/images/SPLIT/                       the pictures: links to the same file where the disk can

The format is recognised by the layout. Pictures and boxes that cannot be read are left out, counted
and reported; nothing is written before everything was read.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from saccade import files
from saccade.data.convert import voc, yolo
from saccade.data.convert.layout import formats_of
from saccade.data.convert.source import Labelled, Source
from saccade.data.findings import Findings, sentences_about
from saccade.data.folder import text
from saccade.spelling import nearest

FORMATS: dict[str, Callable[[Path, list[str] | None], Source]] = {
    "VOC": voc.read,
    "YOLO": yolo.read,
}


class Split(NamedTuple):
    """How much of a split was written."""

    images: int
    boxes: int
    empty: int
    """Images without a box."""


@dataclass(frozen=True)
class Converted:
    """The format that was read, the splits that were written, and faults of the data."""

    format: str
    splits: dict[str, Split]
    classes: list[str]
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out, and about faults."""
    findings: Findings = field(default_factory=dict)
    """The same in full, a line for each case."""


def convert(source: str | Path, out: str | Path, classes: str | Path | None = None) -> Converted:
    """Write a COCO set for one in another format; `classes` is a file with a name a line."""
    place, target = Path(source), Path(out)
    if not place.is_dir():
        raise FileNotFoundError(f"convert: no folder {str(source)!r}; check the path")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"convert: {str(out)!r} is there and not empty; give another folder")
    names = None if classes is None else _names(Path(classes))
    kind = _guessed(place)
    annotations = FORMATS[kind](place, names)
    if not any(row.boxes for rows in annotations.splits.values() for row in rows):
        why = "; ".join(sentences_about(annotations.findings, kind)) or "there are no pictures"
        raise ValueError(f"convert: no boxes could be read in {str(source)!r}: {why}")
    named = annotations.classes if names is None else names
    numbers = _numbers(annotations, named)
    splits = {
        split: _write(target, split, rows, named, numbers)
        for split, rows in annotations.splits.items()
        if rows
    }
    return Converted(
        kind, splits, named, sentences_about(annotations.findings, kind), annotations.findings
    )


def _guessed(place: Path) -> str:
    kinds = formats_of(place)
    if len(kinds) == 1:
        return kinds[0]
    what = "both VOC's Annotations and YOLO's labels" if kinds else "neither VOC nor YOLO"
    raise ValueError(
        f"convert: {str(place)!r} holds {what}; wanted: Annotations/*.xml with JPEGImages, or "
        "images/train with labels/train"
    )


def _names(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"convert: no file {str(path)!r}; --classes takes a name a line")
    names = [line.strip() for line in text(path).splitlines()]
    names = [name for name in names if name]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not names or twice:
        fault = f"{twice!r} is there twice" if twice else "it is empty"
        raise ValueError(f"convert: {str(path)!r}: a name a line, each once, but {fault}")
    return names


def _numbers(source: Source, classes: list[str]) -> dict[str, int]:
    numbers = {name: c for c, name in enumerate(classes, 1)}
    for name in source.classes:
        if name not in numbers:
            raise ValueError(
                f"convert: class {name!r} is not among the {len(classes)} given; "
                f"did you mean {nearest(name, classes)!r}? Correct the file or leave it out"
            )
    return numbers


# -- writing --------------------------------------------------------------------------------


def _write(
    out: Path, split: str, rows: list[Labelled], classes: list[str], numbers: dict[str, int]
) -> Split:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    used: set[str] = set()
    for row in rows:
        name = row.name if row.name not in used else f"{len(images) + 1}_{Path(row.name).name}"
        used.add(name)
        images.append(
            {"id": len(images) + 1, "file_name": name, "width": row.size[0],
             "height": row.size[1]}
        )  # fmt: skip
        for box in row.boxes:
            x, y, w, h = (round(value, 4) for value in box.bbox)
            annotations.append(
                {"id": len(annotations) + 1, "image_id": len(images), "iscrowd": 0,
                 "category_id": numbers[box.name], "bbox": [x, y, w, h], "area": round(w * h, 4)}
                | ({"difficult": 1} if box.difficult else {})
            )  # fmt: skip
        _link(row.path, out / "images" / split / name)
    path = out / "annotations" / f"instances_{split}.json"
    categories = [{"id": c, "name": name} for c, name in enumerate(classes, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return Split(len(images), len(annotations), sum(not row.boxes for row in rows))


def _link(source: Path, target: Path) -> None:
    """A hard link to the same file; a copy if the disk has no hard links."""
    real = source.resolve()
    if target.exists():  # to write there might write into a picture that it is a link to
        raise FileExistsError(f"convert: {str(target)!r} is there already; give another folder")
    with files.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(real, target)
        except OSError:
            shutil.copyfile(real, target)
