"""Read YOLO data sets: one text file for each picture.

    images/SPLIT/ and labels/SPLIT/     or SPLIT/images/ and SPLIT/labels/, or images/ and labels/
    data.yaml (names), classes.txt      the names of the classes

A line is `class cx cy w h`: the class by number from 0, the box by its centre and its size, as
shares of the upright picture's width and height. A line of more numbers, `class x y x y x y ...`,
outlines a shape: its box is the least one that holds all points. Where data.yaml says kpt_shape,
points of a skeleton follow the box, and are not used. A picture without a text file, or with an
empty one, has no objects.
"""

import math
from pathlib import Path
from typing import Any

from saccade.data import picture
from saccade.data.convert.layout import files, yolo_folders
from saccade.data.convert.source import Labelled, Named, Source
from saccade.data.findings import NO_FILES
from saccade.data.folder import Inside, contents, text

NAMES = ("classes.txt", "obj.names", "*/classes.txt", "*/*/classes.txt")
SLACK = 0.01  # pixels; no box is as thin
TOLERANCE = 1e-3  # of a side, by which rounding may carry a number beyond 1


def read(place: Path, names: list[str] | None) -> Source:
    """All pictures, in the order of their names."""
    class_names, points = _class_names(place, names)
    source, inside = Source({}, class_names), Inside(place)
    for split, folders in yolo_folders(place).items():
        rows = source.splits.setdefault(split, [])
        for images, labels in folders:
            picture_names, others = contents(images)
            for other in others:
                source.note(NO_FILES, other)
            paths = sorted(map(Path, picture_names))
            for path in paths:
                for file in (images / path, labels / path.with_suffix(".txt")):
                    if not inside(file):
                        raise inside.refuse(str(file), "convert")
                row = _read(images / path, path, labels, points, source)
                if row is not None:
                    rows.append(row)
            stems = {path.with_suffix("") for path in paths}
            for label in sorted(labels.rglob("*.txt")):
                own = label.relative_to(labels).with_suffix("")
                if own not in stems and label.name not in ("classes.txt", "train.txt", "val.txt"):
                    source.note("label files without their picture (left out)", label.name)
    return source


def _class_names(place: Path, names: list[str] | None) -> tuple[list[str], int]:
    """The names of the classes, and how many numbers of a skeleton follow each box.

    From data.yaml or another yaml with names, or the names from a text file, a name a line.
    """
    points = 0
    for path in sorted(files(place, "*.y*ml"), key=lambda p: (p.name != "data.yaml", p.name)):
        content = _yaml(path)
        points = points or _skeleton(content)
        if names := names or _names(path, content.get("names")):
            return names, points
    for path in (path for pattern in NAMES for path in files(place, pattern)):
        if names := names or [line.strip() for line in text(path).splitlines() if line.strip()]:
            return names, points
    if names:
        return names, points
    raise ValueError(
        f"convert: no names of the classes in {str(place)!r}; add data.yaml with names or "
        "classes.txt, or give --classes FILE with a name a line"
    )


def _yaml(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        content: Any = yaml.safe_load(text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of dates and numbers
        deep = isinstance(error, RecursionError)
        why = "its lists lie too deep" if deep else str(error).partition("\n")[0]
        raise ValueError(f"convert: {str(path)!r} is no yaml: {why}") from error
    return content if isinstance(content, dict) else {}


def _names(path: Path, names: Any) -> list[str]:
    """names as a list, or by number."""
    if isinstance(names, dict):
        numbered = {_number(key): name for key, name in names.items()}
        if len(numbered) < len(names) or numbered.keys() != set(range(len(names))):
            raise ValueError(
                f"convert: {str(path)!r}: names must be numbered 0, 1, 2, ..., each once, got "
                f"{', '.join(map(repr, list(names)[:5]))}"
            )
        names = [numbered[c] for c in range(len(names))]
    if not isinstance(names, list):
        return []
    if any(isinstance(name, list | dict | set) for name in names):
        raise ValueError(f"convert: {str(path)!r}: names must be words, a list or by number")
    return [str(name) for name in names]


def _number(key: Any) -> Any:
    """A key of names: 3 and '3' are the same."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 9 else key


def _skeleton(content: dict[Any, Any]) -> int:
    shape = content.get("kpt_shape")
    whole = isinstance(shape, list) and all(type(n) is int and 0 < n < 1000 for n in shape)
    return math.prod(shape) if whole and isinstance(shape, list) else 0


def _read(file: Path, name: Path, labels: Path, points: int, source: Source) -> Labelled | None:
    real = picture.size(file)
    if real is None:
        source.note("pictures that cannot be read (left out)", str(name))
        return None
    label = labels / name.with_suffix(".txt")
    boxes: list[Named] = []
    if not label.is_file():
        source.note("pictures without a label file (kept, without boxes)", str(name))
    else:
        lines = label.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        for n, line in enumerate(lines, 1):
            if line.strip():
                words, where = line.split(), f"{label.name}, line {n}"
                box = _box(words, where, real.upright, points, source)
                boxes += [box] if box is not None else []
    return Labelled(file, name.as_posix(), real.upright, boxes)


def _box(
    words: list[str], where: str, size: tuple[int, int], points: int, source: Source
) -> Named | None:
    classes = source.classes
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        source.note("lines that are no numbers (left out)", f"{where} ({' '.join(words)[:40]})")
        return None
    if points and len(numbers) == 5 + points:
        numbers = numbers[:5]
    outline = len(numbers) > 5 and len(numbers) % 2 == 1
    if len(numbers) != 5 and not outline:
        kind = "lines that are not five numbers, class cx cy w h (left out)"
        source.note(kind, f"{where} ({len(numbers)} numbers)")
        return None
    c, *shares = numbers
    if not all(-TOLERANCE <= value <= 1 + TOLERANCE for value in shares):
        kind = "boxes that are no shares of the picture, 0 to 1 (left out)"
        source.note(kind, f"{where} ({' '.join(words[1:5])})")
        return None
    if not math.isfinite(c) or not c.is_integer() or c < 0:
        source.note("lines whose class is no number from 0 on (left out)", f"{where} ({words[0]})")
        return None
    if c >= len(classes):
        raise ValueError(
            f"convert: {where}: class {c:.0f}, but there are {len(classes)} names, for 0 to "
            f"{len(classes) - 1}; give all of them with --classes FILE"
        )
    W, H = size
    x, y, w, h = _around(shares) if outline else _corner(shares)
    if w * W < SLACK or h * H < SLACK:
        source.note("boxes without width or height (left out)", where)
        return None
    if outline:
        source.note("outlines of shapes (made into boxes)", where)
    return Named(classes[int(c)], (x * W, y * H, w * W, h * H))


def _around(points: list[float]) -> tuple[float, float, float, float]:
    """x y w h of the least box that holds all points x y x y ..."""
    xs, ys = points[::2], points[1::2]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def _corner(box: list[float]) -> tuple[float, float, float, float]:
    cx, cy, w, h = box
    return cx - w / 2, cy - h / 2, w, h
