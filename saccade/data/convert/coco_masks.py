"""Read a class for every pixel from what COCO publishes.

    stuffthingmaps/SPLIT/NAME.png                       COCO-Stuff: the category's id less one
    annotations/panoptic_SPLIT.json, panoptic_SPLIT/    segments, by the colours of their numbers
    annotations/instances_SPLIT.json                    outlines of objects, on a background

Pictures lie in SPLIT/ or images/SPLIT/. Of outlines that overlap the smaller object is above, and
crowds are ignored.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from saccade.data.boxes import coco, outlines
from saccade.data.convert import regions
from saccade.data.convert.layout import SPLITS, files
from saccade.data.convert.regions import IGNORED, Masked, Regions
from saccade.data.findings import Findings
from saccade.data.folder import Inside, contents, text
from saccade.data.picture import ENDINGS

STUFF = 182  # the highest id of COCO-Stuff
MOST = 254  # ids that 8 bits hold beside the one that is ignored


def is_stuff(place: Path) -> bool:
    return (place / "stuffthingmaps").is_dir()


def is_panoptic(place: Path) -> bool:
    return bool(files(place / "annotations", "panoptic_*.json"))


def is_outlines(place: Path) -> bool:
    return bool(files(place / "annotations", "instances_*.json"))


def _split(name: str) -> str:
    """train of train2017; "" of what is no split."""
    match = re.fullmatch(r"([a-z]+)(\d*)", name.lower())
    return SPLITS.get(match[1], "") if match else ""


def _folders(place: Path, name: str) -> list[Path]:
    """Where the pictures of train2017 may lie."""
    word = re.sub(r"\d+$", "", name)
    every = [place / part / n for n in (name, word) for part in ("images", ".")]
    return [folder for folder in every if folder.is_dir()] + [place / "images"]


def _photos(place: Path, name: str) -> dict[str, Path]:
    """Pictures by name without ending."""
    folder = _folders(place, name)[0]
    return {Path(n).stem: folder / n for n in contents(folder, ENDINGS).names}


# -- stuff ----------------------------------------------------------------------------------


def read_stuff(place: Path) -> Regions:
    """COCO-Stuff's masks, which stay as they are: 0 is person, 255 no class."""
    source, inside = Regions({}, _stuff_names(place)), Inside(place)
    for folder in sorted((place / "stuffthingmaps").glob("*/")):
        if not _split(folder.name):
            continue
        photos = _photos(place, folder.name)
        rows = source.splits.setdefault(_split(folder.name), [])
        for name in contents(folder, (".png",)).names:
            stem = Path(name).stem
            if stem not in photos:
                source.note("masks without a picture (left out)", name)
                continue
            pair = Masked(photos[stem], folder / name, stem)
            inside.check((pair.photo, pair.mask), "convert")
            rows.append(pair)
    return source


def _stuff_names(place: Path) -> dict[int, str]:
    """Names by pixel, from labels.txt or the json files beside; "class N" where nothing says it."""
    names: dict[int, str] = {}
    for path in (place / "labels.txt", place / "stuffthingmaps" / "labels.txt"):
        for line in text(path).splitlines() if path.is_file() else ():
            key, _, name = line.partition(":")
            if key.strip().isdigit() and int(key) and name.strip():
                names[int(key) - 1] = name.strip()
    for kind in ("instances", "stuff") if not names else ():
        for path in sorted(files(place / "annotations", f"{kind}_*.json"), key=_weight)[:1]:
            categories = _content(path).get("categories")
            for row in categories if isinstance(categories, list) else ():
                key, name = _fields(row, "id", "name")
                if isinstance(key, int) and isinstance(name, str) and 0 < key <= STUFF:
                    names[key - 1] = name
    return names or {i: f"class {i + 1}" for i in range(STUFF)}


def _weight(path: Path) -> int:
    return path.stat().st_size


def _fields(row: Any, *keys: str) -> list[Any]:
    return [row.get(key) if isinstance(row, dict) else None for key in keys]


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"convert: {str(path)!r} is no json ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"convert: {str(path)!r} holds a {type(content).__name__}, no COCO json")
    return content


# -- panoptic -------------------------------------------------------------------------------


def read_panoptic(place: Path) -> Regions:
    """The category of each segment; 0 in the pictures of segments is nothing."""
    source, inside = Regions({}, {}), Inside(place)
    segments: list[dict[int, int]] = []
    numbers: dict[int, int] = {}
    for path in files(place / "annotations", "panoptic_*.json"):
        name = path.stem.removeprefix("panoptic_")
        if not _split(name):
            continue
        content = _content(path)
        for row in _rows(path, content, "categories"):
            key, category = _fields(row, "id", "name")
            if isinstance(key, int) and isinstance(category, str) and key not in numbers:
                numbers[key] = len(numbers)
                source.classes[numbers[key]] = category
        photos, folder = _photos(place, name), path.with_suffix("")
        rows = source.splits.setdefault(_split(name), [])
        for row in _rows(path, content, "annotations"):
            file_name, parts = _fields(row, "file_name", "segments_info")
            stem = Path(file_name).stem if isinstance(file_name, str) else ""
            if stem not in photos or not (folder / f"{stem}.png").is_file():
                source.note("segments without their picture or mask (left out)", str(file_name))
                continue
            pair = Masked(photos[stem], folder / f"{stem}.png", stem, len(segments))
            inside.check((pair.photo, pair.mask), "convert")
            segments.append(_categories(parts, numbers))
            rows.append(pair)
    if len(numbers) > MOST:
        raise ValueError(f"convert: at most {MOST} categories, got {len(numbers)}")

    def decoded(pair: Masked) -> UInt8[np.ndarray, "H W"]:
        r, g, b = np.moveaxis(regions.colours(pair.mask).astype(np.int64), -1, 0)
        values, places = np.unique(r + 256 * g + 65536 * b, return_inverse=True)
        classes = segments[pair.key]
        table = np.array([classes.get(int(value), IGNORED) for value in values], np.uint8)
        return table[places].reshape(r.shape)

    source.read = decoded
    return source


def _rows(path: Path, content: dict[str, Any], key: str) -> list[Any]:
    rows = content.get(key)
    if not isinstance(rows, list):
        raise ValueError(f"convert: {str(path)!r} has no list of {key}")
    return rows


def _categories(parts: Any, numbers: dict[int, int]) -> dict[int, int]:
    """The class of each segment of a picture."""
    pairs = (_fields(part, "id", "category_id") for part in parts if isinstance(parts, list))
    return {
        key: numbers[category]
        for key, category in pairs
        if isinstance(key, int) and isinstance(category, int) and category in numbers
    }


# -- outlines -------------------------------------------------------------------------------


def read_outlines(place: Path) -> Regions:
    """Objects laid onto a background, which is class 0."""
    source = Regions({}, {})
    paths = [p for p in files(place / "annotations", "instances_*.json") if _stem(p)]
    sets = [coco.read(path, place, _folders(place, _stem(path)), outlines=True) for path in paths]
    for which, (path, one) in enumerate(zip(paths, sets, strict=True)):
        _merge(source.findings, one.findings)
        if not one.outlines:
            source.note("files without an outline (left out)", path.name)
            continue
        if source.classes and list(source.classes.values())[1:] != one.classes:
            raise ValueError(f"convert: {str(path)!r} has other categories than {str(paths[0])!r}")
        source.classes = dict(enumerate(["background", *one.classes]))
        rows = source.splits.setdefault(_split(_stem(path)), [])
        for i, name in enumerate(one.names):
            rows.append(Masked(place / name, path, Path(name).stem, which << 32 | i))
    if len(source.classes) > MOST:
        raise ValueError(f"convert: at most {MOST} classes, got {len(source.classes)}")

    def laid(pair: Masked) -> UInt8[np.ndarray, "H W"]:
        one, i = sets[pair.key >> 32], pair.key & 0xFFFFFFFF
        first, end = one.starts[i], one.starts[i + 1]
        W, H = one.sizes[i].tolist()
        masks = outlines.decoded((one.outlines or [])[first:end], (W, H))
        canvas = np.zeros((H, W), np.uint8)
        for n in np.argsort([-int(mask.sum()) for mask in masks], kind="stable"):
            crowd = one.crowd[first + n]
            canvas[masks[n] > 0] = IGNORED if crowd else one.labels[first + n] + 1
        return canvas

    source.read = laid
    return source


def _stem(path: Path) -> str:
    name = path.stem.removeprefix("instances_")
    return name if _split(name) else ""


def _merge(into: Findings, more: Findings) -> None:
    for kind, lines in more.items():
        into.setdefault(kind, []).extend(lines)
