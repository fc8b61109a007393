"""Read a COCO json into compact arrays, with a list of its faults.

A fault does not stop the reading, and nothing is dropped silently: each fault is a line of the
`Findings`. An error is raised only for a file that is no COCO json, for a picture outside of the
data folder, and for boxes that are not written in COCO's way.
"""

import contextlib
import gc
import json
import math
import os
from array import array
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from saccade.data import picture
from saccade.data.boxes.convention import refuse_other
from saccade.data.boxes.outlines import compressed
from saccade.data.findings import Findings, note
from saccade.data.folder import Inside

MOST = 1e9  # pixels
SLACK = 0.01  # pixels; two printed digits may round a box beyond the border, and none is as thin
NUMBERS = frozenset((int, float))
NO_NUMBERS = "boxes that are no four numbers (left out)"
NO_OUTLINE = "objects without an outline that can be read (left out)"
NOT_FINITE = "boxes that are not finite (left out)"


@dataclass
class Annotations:
    """Images in the file's order, the boxes of each between `starts[i]` and `starts[i + 1]`."""

    names: list[str]
    """Paths of the pictures, from `root` on."""
    keys: Integer[np.ndarray, "N"]
    """The images' ids."""
    sizes: Integer[np.ndarray, "N 2"]
    """Width and height that the boxes refer to; 0 where nobody knows."""
    starts: Integer[np.ndarray, "N1"]
    boxes: Float[np.ndarray, "M 4"]
    """x0 y0 x1 y1, inside the image."""
    labels: Integer[np.ndarray, "M"]
    """Numbers into `classes`."""
    crowd: Bool[np.ndarray, "M"]
    area: Float[np.ndarray, "M"]
    classes: list[str]
    ids: list[int]
    """The category id of each class."""
    outlines: list[bytes] | None = None
    """The runs of each box's mask, if masks were asked for."""
    findings: Findings = field(default_factory=dict)


def read(path: Path, root: Path, folders: Sequence[Path], outlines: bool = False) -> Annotations:
    """The annotations of the pictures that lie in one of the folders.

    Args:
        path: the json
        root: the data folder, which no picture may lie outside of
        folders: where pictures may lie
        outlines: read the objects' masks too; an object without one is then left out
    """
    with _uncollected():
        return _read(path, root, folders, outlines)


@contextlib.contextmanager
def _uncollected() -> Generator[None]:
    """Pause python's garbage collector, which would scan millions of objects for nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read(path: Path, root: Path, folders: Sequence[Path], outlines: bool) -> Annotations:
    images, annotations, categories = _lists(path, outlines)
    findings: Findings = {}
    numbers, classes, ids = _categories(categories, findings)
    image_table = _images(images, root, folders, findings, f"{str(path)!r}")
    if images and not image_table.names:
        places = ", ".join(dict.fromkeys(str(folder) for folder in folders))
        raise FileNotFoundError(
            f"{str(path)!r}: none of its {len(images)} pictures is there, such as "
            f"{_file_name(images[0])!r}; looked in {places}"
        )
    boxes = _boxes(annotations, image_table, numbers, findings, outlines)
    _check_convention(path, boxes, image_table)
    return _sorted(image_table, boxes, classes, ids, findings)


# -- the file -------------------------------------------------------------------------------


def _lists(path: Path, outlines: bool = False) -> list[list[dict[str, Any]]]:
    """Its images, annotations and categories."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            content = json.load(file, object_hook=None if outlines else _lean)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is no json ({error}); write it anew") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} is no COCO json: it holds a {type(content).__name__}")
    lists = []
    for key in ("images", "annotations", "categories"):
        part = content.get(key)
        if not isinstance(part, list) or not all(isinstance(row, dict) for row in part):
            has = ", ".join(map(str, content)) or "nothing"
            odd = f"{key!r} is no list of objects" if key in content else f"it has {has}"
            raise ValueError(
                f"{str(path)!r} is no COCO json: it wants lists images, annotations and "
                f"categories; {odd}"
            )
        lists.append(part)
    if not lists[0]:
        raise ValueError(f"{str(path)!r} lists no images")
    if not lists[2]:
        raise ValueError(f"{str(path)!r} names no categories, so its boxes have no classes")
    return lists


def ids_and_names(path: Path) -> list[tuple[int, str]]:
    """Ids and file names of the images in a json."""
    rows = _lists(path)[0]
    return [(key, _file_name(row)) for row in rows if isinstance(key := _key(row.get("id")), int)]


def _lean(row: dict[str, Any]) -> dict[str, Any]:
    """An annotation without its outline: outlines are most of a file."""
    row.pop("segmentation", None)
    return row


# -- categories -----------------------------------------------------------------------------


def _categories(
    rows: list[dict[str, Any]], findings: Findings
) -> tuple[dict[Any, int], list[str], list[int]]:
    """Numbers by category id, in the order of the ids; names, and ids."""
    names: dict[Any, str] = {}
    for row in rows:
        key, name = _key(row.get("id")), row.get("name")
        if not isinstance(key, int):
            note(findings, "categories without a whole number as id (left out)", repr(name))
        elif key in names:
            note(findings, "category ids listed twice (the first kept)", f"{key} ({name!r})")
        else:
            if not isinstance(name, str) or not name or not _is_text(name):
                note(findings, "categories without a name (called by their id)", str(key))
                name = str(key)
            names[key] = name
    numbers: dict[Any, int] = {}
    classes: list[str] = []
    ids: list[int] = []
    for key in sorted(names):
        name = names[key]
        if name in classes:
            note(findings, "category names listed twice (made one class)", f"{name!r} ({key})")
        else:
            classes.append(name)
            ids.append(key)
        numbers[key] = classes.index(name)
    return numbers, classes, ids


def _is_text(name: str) -> bool:
    """Whether a name can be printed; a lone surrogate cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- images ---------------------------------------------------------------------------------


@dataclass
class _ImageTable:
    names: list[str] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    """Position by id; -1 for an image whose file is not there."""


def _images(
    rows: list[dict[str, Any]],
    root: Path,
    folders: Sequence[Path],
    findings: Findings,
    where: str,
) -> _ImageTable:
    table, places, seen_ids, inside = _ImageTable(), list(folders), set(), Inside(root)
    keys = [_key(row.get("id")) for row in rows]
    fresh = 1 + max((key for key in keys if isinstance(key, int) and key < 2**62), default=0)
    for row, key in zip(rows, keys, strict=True):
        name = _file_name(row)
        if key is None:
            note(findings, "images without an id (left out)", repr(name))
            continue
        if key in table.numbers:
            note(findings, "image ids listed twice (the first kept)", f"{key} ({name})")
            continue
        table.numbers[key] = -1
        if not name:
            note(findings, "images without a file name (left out)", str(key))
            continue
        path = _existing_name(name, places)
        if path is None:
            note(findings, "pictures not found (left out with their boxes)", name)
            continue
        if not inside(path):
            raise inside.refuse(name, where)
        if path in seen_ids:
            note(findings, "pictures listed under two ids (both kept)", name)
        seen_ids.add(path)
        if isinstance(key, str):
            note(findings, "image ids that are no whole numbers (numbered anew)", key)
        table.numbers[key] = len(table.names)
        table.keys.append(key if isinstance(key, int) else fresh)
        fresh += isinstance(key, str)
        table.names.append(os.path.relpath(path, root))
        size = _whole(row.get("width")), _whole(row.get("height"))
        if not all(size):
            kind = "images without width and height (taken from the file)"
            note(findings, kind, name)
            size = _measured(path)
        table.sizes.append(size)
    return table


def _key(value: Any) -> int | str | None:
    """An id; some programs write whole numbers as 1.0 or "1". One beyond 64 bits stays a word."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return str(value)
    return value if isinstance(value, int | str) else None


def _file_name(row: dict[str, Any]) -> str:
    name = row.get("file_name")
    return name.replace("\\", "/") if isinstance(name, str) else ""


def _existing_name(name: str, folders: list[Path]) -> str | None:
    """The path of a picture: its full name in one of the folders, else its last part."""
    for candidate in dict.fromkeys((name, os.path.basename(name))):
        for folder in folders:
            path = os.path.join(folder, candidate)
            if os.path.isfile(path):
                return path
    return None


def _whole(value: Any) -> int:
    number = type(value) in NUMBERS and 1 <= value <= MOST
    return int(value) if number else 0


def _measured(path: str) -> tuple[int, int]:
    """The upright size; that of the json for a broken file, which is reported when it is read."""
    size = picture.size(path)
    return (0, 0) if size is None else size.upright


# -- boxes ----------------------------------------------------------------------------------


@dataclass
class _Rows:
    image: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    box: list[tuple[float, float, float, float]] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    outline: list[bytes] = field(default_factory=list)
    area: list[float] = field(default_factory=list)
    numbers: array = field(default_factory=lambda: array("d"))
    """x y w h and the area of every box of some width and height, as the file has them."""
    written_in: list[int] = field(default_factory=list)
    """The image of each of these."""


def _boxes(
    annotations: list[dict[str, Any]],
    image_table: _ImageTable,
    numbers: dict[Any, int],
    findings: Findings,
    outlines: bool,
) -> _Rows:
    rows, used_ids = _Rows(), set()
    for n, row in enumerate(annotations):
        key, at = _key(row.get("id")), image_table.numbers.get(_key(row.get("image_id")))
        label = numbers.get(_key(row.get("category_id")))
        if at is None or at < 0 or label is None:
            kind, why = _homeless(row, at)
            note(findings, kind, f"{_box_name(key, n)} ({why})")
            continue
        box, kind = _box(row.get("bbox"), image_table.sizes[at])
        if kind not in (NO_NUMBERS, NOT_FINITE) and min(row["bbox"][2:]) > 0:
            rows.numbers.extend(row["bbox"])
            rows.numbers.append(_area(row.get("area"), math.nan))
            rows.written_in.append(at)
        if kind:
            name, (W, H) = os.path.basename(image_table.names[at]), image_table.sizes[at]
            note(findings, kind, f"{_box_name(key, n)} of {name} ({row.get('bbox')} in {W} x {H})")
        if box is None:
            continue
        if outlines:
            runs = compressed(row.get("segmentation"), image_table.sizes[at])
            if runs is None:
                note(findings, NO_OUTLINE, _box_name(key, n))
                continue
            rows.outline.append(runs)
        if key is not None and key in used_ids:
            note(findings, "annotation ids used twice (both boxes kept)", _box_name(key, n))
        used_ids.add(key)
        rows.image.append(at)
        rows.label.append(label)
        rows.box.append(box)
        crowd = row.get("iscrowd")
        if crowd is not None and _key(crowd) not in (0, 1):
            kind = "boxes whose iscrowd is neither 0 nor 1 (taken for 0)"
            note(findings, kind, f"{_box_name(key, n)} ({crowd!r})")
        rows.crowd.append(_key(crowd) == 1)
        rows.area.append(_area(row.get("area"), (box[2] - box[0]) * (box[3] - box[1])))
    return rows


def _homeless(row: dict[str, Any], at: int | None) -> tuple[str, str]:
    """Why an annotation belongs to no image or category."""
    if at is None:
        kind = "annotations of an image that is not listed (left out)"
        return kind, f"image {row.get('image_id')}"
    if at < 0:
        return "annotations of a picture that was left out", f"image {row.get('image_id')}"
    kind = "annotations of a category that is not listed (left out)"
    return kind, f"category {row.get('category_id')}"


def _box_name(key: Any, n: int) -> str:
    return f"annotation {n if key is None else key}"


def _box(bbox: Any, size: tuple[int, int]) -> tuple[tuple[float, float, float, float] | None, str]:
    """Corners of x y w h, clipped to the image, or None; and the fault, if any."""
    if not isinstance(bbox, list) or len(bbox) != 4 or not NUMBERS.issuperset(map(type, bbox)):
        return None, NO_NUMBERS
    x, y, w, h = bbox
    if not (abs(x) < MOST and abs(y) < MOST and abs(w) < MOST and abs(h) < MOST):  # NaN is not
        return None, NOT_FINITE
    if w < SLACK or h < SLACK:
        return None, "boxes without width or height (left out)"
    W, H = size if all(size) else (math.inf, math.inf)
    x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + w, W), min(y + h, H)
    if x1 - x0 < SLACK or y1 - y0 < SLACK:
        return None, "boxes that lie outside their image (left out)"
    beyond = max(x0 - x, y0 - y, x + w - x1, y + h - y1) > SLACK
    kind = "boxes that reach beyond their image (clipped)" if beyond else ""
    return (float(x0), float(y0), float(x1), float(y1)), kind


def _area(value: Any, otherwise: float) -> float:
    return float(value) if type(value) in NUMBERS and 0 <= value <= MOST**2 else otherwise


def _check_convention(path: Path, rows: _Rows, image_table: _ImageTable) -> None:
    numbers = np.asarray(rows.numbers, np.float64).reshape(-1, 5)
    sizes = np.asarray(image_table.sizes, np.float64).reshape(-1, 2)[rows.written_in]
    refuse_other(f"{str(path)!r}", numbers[:, :4], sizes, numbers[:, 4])


def _sorted(
    image_table: _ImageTable, rows: _Rows, classes: list[str], ids: list[int], findings: Findings
) -> Annotations:
    """Boxes by image, otherwise in the file's order."""
    image = np.asarray(rows.image, np.int64)
    order = np.argsort(image, kind="stable")
    counts = np.bincount(image, minlength=len(image_table.names))
    return Annotations(
        names=image_table.names,
        keys=np.asarray(image_table.keys, np.int64),
        sizes=np.asarray(image_table.sizes, np.int32).reshape(-1, 2),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        boxes=_array(rows.box, np.float32).reshape(-1, 4)[order],
        labels=_array(rows.label, np.int32)[order],
        crowd=_array(rows.crowd, np.bool_)[order],
        area=_array(rows.area, np.float32)[order],
        classes=classes,
        ids=ids,
        outlines=[rows.outline[i] for i in order.tolist()] if rows.outline else None,
        findings=findings,
    )


def _array(values: Iterable[Any], dtype: Any) -> np.ndarray:
    return np.asarray(list(values), dtype)
