"""Recognise VOC's and YOLO's folder layouts by file names.

VOC     Annotations/*.xml, *.xml, or SPLIT/*.xml
YOLO    images/SPLIT/ and labels/SPLIT/, SPLIT/images/ and SPLIT/labels/, or images/ and labels/
"""

import re
import shlex
from pathlib import Path

SPLITS = {
    "train": "train", "trainval": "train", "training": "train", "val": "val", "valid": "val",
    "validation": "val", "test": "test", "testing": "test",
}  # fmt: skip


def files(folder: Path, pattern: str) -> list[Path]:
    """The files that match, sorted; other entries are left out."""
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def voc_parts(place: Path) -> list[tuple[str, Path, Path]]:
    """Folders with xml files: their split if the folder's name says it, the whole, and the xmls."""
    for folder in (place / "Annotations", place / "annotations", place):
        if any(folder.glob("*.xml")):
            return [("", place, folder)]
    inside = [f for f in sorted(place.glob("*/")) if f.name in SPLITS and any(f.glob("*.xml"))]
    return [(SPLITS[folder.name], folder, folder) for folder in inside]


def yolo_folders(place: Path) -> dict[str, list[tuple[Path, Path]]]:
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
    match = re.fullmatch(r"([a-z]+)(\d*)", name.lower())
    return SPLITS[match[1]] + match[2] if match and match[1] in SPLITS else ""


def advice(place: Path, deep: bool = False) -> str:
    """What to do with a folder of boxes that has to be converted first; "" for any other.

    Args:
        place: the folder
        deep: also look into folders inside it (VOC2012 in VOCdevkit)
    """
    inside = sorted(f for f in place.glob("*/") if not f.name.startswith(".")) if deep else []
    for folder in (place, *inside):
        if voc_parts(folder) or has_yolo(folder):
            return convert_first(folder)
    return ""


def convert_first(place: Path) -> str:
    return (
        f"{str(place)!r} looks like YOLO's or VOC's layout: saccade convert "
        f"{shlex.quote(str(place))} OUT makes a COCO set of it, for saccade train detect --data OUT"
    )


def has_yolo(place: Path) -> bool:
    """Whether YOLO's folders of labels hold text files; masks may lie in such folders too."""
    pairs = [pair for pairs in yolo_folders(place).values() for pair in pairs]
    return any(next(labels.rglob("*.txt"), None) is not None for _, labels in pairs)
