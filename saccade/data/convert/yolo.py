"""YOLO: a text file a picture.

    images/SPLIT/ and labels/SPLIT/     or SPLIT/images/ and SPLIT/labels/, or images/ and labels/
    data.yaml (names), classes.txt      the names of the classes

A line is `class cx cy w h`: the class by number from 0, the box by its centre and its size, as
shares of the upright picture's width and height. Lines with more numbers outline a shape; they are
left out and counted. A picture without a text file, or with an empty one, has no objects.
"""

import math
import re
from pathlib import Path
from typing import Any

from saccade.data import picture
from saccade.data.convert.source import SPLITS, Labelled, Named, Source

NAMES = ("classes.txt", "obj.names", "*/classes.txt", "*/*/classes.txt")
TOLERANCE = 1e-3  # of a side, by which rounding may carry a number beyond 1


def is_one(place: Path) -> bool:
    return bool(_folders(place))


def _folders(place: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Folders of pictures and of labels, by split."""
    folders: dict[str, list[tuple[Path, Path]]] = {}
    inside = sorted((place / "labels").glob("*/")) if (place / "labels").is_dir() else []
    pairs = [(folder.name, place / "images" / folder.name, folder) for folder in inside]
    pairs += [(f.parent.name, f.parent / "images", f) for f in sorted(place.glob("*/labels"))]
    for name, images, labels in pairs:
        split = _split(name)
        if split and images.is_dir() and labels.is_dir():
            folders.setdefault(split, []).append((images, labels))
    flat = place / "images", place / "labels"
    if not folders and all(folder.is_dir() for folder in flat):
        folders["train"] = [flat]
    return folders


def _split(name: str) -> str:
    """train2017 stays with its year; "" for a folder that is no split."""
    named = re.fullmatch(r"([a-z]+)(\d*)", name.lower())
    return SPLITS[named[1]] + named[2] if named and named[1] in SPLITS else ""


def read(place: Path, names: list[str] | None) -> Source:
    """All pictures, in the order of their names."""
    classes = names or _classes(place)
    source = Source({}, classes)
    for split, folders in _folders(place).items():
        rows = source.splits.setdefault(split, [])
        for images, labels in folders:
            files = [p for p in sorted(images.rglob("*")) if picture.is_one(p.name) and p.is_file()]
            for file in files:
                row = _read(file, file.relative_to(images), labels, classes, source)
                if row is not None:
                    rows.append(row)
            known = {file.relative_to(images).with_suffix("") for file in files}
            for text in sorted(labels.rglob("*.txt")):
                own = text.relative_to(labels).with_suffix("")
                if own not in known and text.name not in ("classes.txt", "train.txt", "val.txt"):
                    source.note("label files without their picture (left out)", text.name)
    return source


def _classes(place: Path) -> list[str]:
    """From data.yaml or another yaml with names, or from a text file with a name a line."""
    for path in sorted(place.glob("*.y*ml"), key=lambda p: (p.name != "data.yaml", p.name)):
        class_names = _yaml(path)
        if class_names:
            return class_names
    for path in (path for pattern in NAMES for path in sorted(place.glob(pattern))):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        if class_names := [line.strip() for line in lines if line.strip()]:
            return class_names
    raise ValueError(
        f"convert: no names of the classes in {str(place)!r}; add data.yaml with names or "
        "classes.txt, or give --classes FILE with a name a line"
    )


def _yaml(path: Path) -> list[str]:
    """names as a list, or by number."""
    import yaml

    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"convert: {str(path)!r} is no yaml: {why}") from error
    names = content.get("names") if isinstance(content, dict) else None
    if isinstance(names, dict):
        if sorted(names) != list(range(len(names))):
            raise ValueError(f"convert: {str(path)!r}: names must be numbered 0, 1, 2, ...")
        names = [names[c] for c in range(len(names))]
    return [str(name) for name in names] if isinstance(names, list) else []


def _read(
    file: Path, name: Path, labels: Path, classes: list[str], source: Source
) -> Labelled | None:
    real = picture.size(file)
    if real is None:
        source.note("pictures that cannot be read (left out)", str(name))
        return None
    text = labels / name.with_suffix(".txt")
    boxes: list[Named] = []
    if not text.is_file():
        source.note("pictures without a label file (kept, without boxes)", str(name))
    else:
        lines = text.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        for n, line in enumerate(lines, 1):
            if line.strip():
                box = _box(line.split(), f"{text.name}, line {n}", real.upright, classes, source)
                boxes += [box] if box is not None else []
    return Labelled(file, name.as_posix(), real.upright, boxes)


def _box(
    words: list[str], where: str, size: tuple[int, int], classes: list[str], source: Source
) -> Named | None:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        source.note("lines that are no numbers (left out)", f"{where} ({' '.join(words)[:40]})")
        return None
    if len(numbers) > 5 and len(numbers) % 2:
        source.note("outlines of shapes (left out)", where)
        return None
    if len(numbers) != 5:
        kind = "lines that are not five numbers, class cx cy w h (left out)"
        source.note(kind, f"{where} ({len(numbers)} numbers)")
        return None
    c, *box = numbers
    if not all(-TOLERANCE <= value <= 1 + TOLERANCE for value in box):
        kind = "boxes that are no shares of the picture, 0 to 1 (left out)"
        source.note(kind, f"{where} ({' '.join(words[1:])})")
        return None
    if not math.isfinite(c) or not c.is_integer() or c < 0:
        source.note("lines whose class is no number from 0 on (left out)", f"{where} ({words[0]})")
        return None
    if c >= len(classes):
        raise ValueError(
            f"convert: {where}: class {int(c)}, but there are {len(classes)} names, for 0 to "
            f"{len(classes) - 1}; give all of them with --classes FILE"
        )
    (W, H), (cx, cy, w, h) = size, box
    return Named(classes[int(c)], ((cx - w / 2) * W, (cy - h / 2) * H, w * W, h * H))
