"""The objects of a picture as files that other programs read: YOLO's text, and crops.

labels/NAME.txt, labels/classes.txt     class cx cy w h, as shares of the picture's width and height
crops/CLASS/NAME-1.png                  each object cut out, the highest score first
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from saccade.files import write, writing

LONGEST = 100  # letters of a folder's name


def label_lines(boxes: Any, size: tuple[int, int]) -> list[str]:
    """A line for each box of a picture of a width and height."""
    W, H = size
    return [
        f"{label} {(x0 + x1) / 2 / W:.6f} {(y0 + y1) / 2 / H:.6f} "
        f"{(x1 - x0) / W:.6f} {(y1 - y0) / H:.6f}"
        for (x0, y0, x1, y1), label in zip(boxes.boxes.tolist(), boxes.labels.tolist(), strict=True)
    ]


def write_names(folder: Path, classes: Sequence[str]) -> Path:
    """Write the names that the numbers of the lines stand for."""
    folder.mkdir(parents=True, exist_ok=True)
    return write(folder / "classes.txt", "".join(f"{' '.join(one.split())}\n" for one in classes))


def write_labels(folder: Path, name: str, boxes: Any, size: tuple[int, int]) -> Path:
    """Write a picture's lines; an empty file where nothing is."""
    lines = label_lines(boxes, size)
    return write(folder / f"{name}.txt", "".join(f"{line}\n" for line in lines))


def write_crops(
    folder: Path, name: str, photo: Image.Image, boxes: Any, classes: Sequence[str]
) -> Iterator[Path]:
    """Cut each object out of its picture, with its whole outer pixels."""
    for i, (corners, label) in enumerate(
        zip(boxes.boxes.tolist(), boxes.labels.tolist(), strict=True), 1
    ):
        x0, y0, x1, y1 = corners
        left, top = int(x0), int(y0)
        right, below = max(-int(-x1 // 1), left + 1), max(-int(-y1 // 1), top + 1)
        path = folder / folder_name(classes[label]) / f"{name}-{i}.png"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            photo.crop((left, top, right, below)).save(path)
        yield path


def folder_name(word: str) -> str:
    """A class's name as the name of a folder: a name may hold slashes, or be two dots."""
    safe = "".join(c if c.isalnum() or c in "-_ ." else "_" for c in word)[:LONGEST].strip(" .")
    return safe or "_"
