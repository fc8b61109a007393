"""Write a COCO data set from boxes in VOC's xml or YOLO's text.

    OUT/annotations/instances_SPLIT.json    category ids from 1, in the order of the classes
    OUT/images/SPLIT/                       the pictures: links to the same file where the disk can

Pictures and boxes that cannot be read are left out, counted and reported; nothing is written before
everything was read.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from saccade import files
from saccade.data.convert.link import link
from saccade.data.convert.source import Labelled, Source
from saccade.data.findings import sentences_about
from saccade.spelling import nearest


class Split(NamedTuple):
    """How much of a split was written."""

    images: int
    boxes: int
    empty: int
    """Images without a box."""


def write(
    out: Path, annotations: Source, names: list[str] | None, place: str, kind: str
) -> dict[str, Split]:
    """Write all splits; gives their sizes.

    Args:
        out: the folder
        annotations: what was read
        names: the classes in the order that is wanted; the set's own if None
        place: the set's folder, for errors
        kind: the name of its format, for errors
    """
    if not any(row.boxes for rows in annotations.splits.values() for row in rows):
        why = "; ".join(sentences_about(annotations.findings, kind)) or "there are no pictures"
        raise ValueError(f"convert: no boxes could be read in {place!r}: {why}")
    class_names = annotations.classes if names is None else names
    numbers = _numbers(annotations, class_names)
    return {
        split: _write(out, split, rows, class_names, numbers)
        for split, rows in annotations.splits.items()
        if rows
    }


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
    used_names: set[str] = set()
    for row in rows:
        name = (
            row.name if row.name not in used_names else f"{len(images) + 1}_{Path(row.name).name}"
        )
        used_names.add(name)
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
        link(row.path, out / "images" / split / name)
    path = out / "annotations" / f"instances_{split}.json"
    categories = [{"id": c, "name": name} for c, name in enumerate(classes, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return Split(len(images), len(annotations), sum(not row.boxes for row in rows))
