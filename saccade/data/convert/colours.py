"""Masks whose classes are colours, and the tables that say which colour is which class.

    class_dict.csv      name,r,g,b                a header, as CamVid at Kaggle has it
    labelmap.txt        name:r,g,b:parts:actions  CVAT
    label_colors.txt    r g b  name               CamVid's own; also `name r g b`
    colours.json        {"name": [r, g, b]} or {"name": "#rrggbb"}

A class called void, ignore, ignored or unlabelled is none: its pixels are ignored. Two colours may
be of one class.
"""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from saccade.data.folder import text

Colour = tuple[int, int, int]

NAMES = (
    "class_dict.csv", "labelmap.txt", "label_colors.txt", "colours.json", "colors.json",
    "colours.txt", "colors.txt",
)  # fmt: skip
VOID = {"void", "ignore", "ignored", "unlabelled", "unlabeled"}
IGNORED = 255
FORMS = "name,r,g,b or `r g b name` a line, CVAT's labelmap.txt, or json {name: [r, g, b]}"


@dataclass(frozen=True)
class ColourTable:
    """The classes in their order, and the class of each colour."""

    classes: list[str]
    numbers: dict[Colour, int]
    """The class's number of each colour; IGNORED for colours that are no class."""

    def decode(self, rgb: UInt8[np.ndarray, "H W 3"]) -> tuple[UInt8[np.ndarray, "H W"], int]:
        """Classes by number, and of how many pixels the table does not know the colour."""
        packed = _packed(rgb)
        values, places = np.unique(packed, return_inverse=True)
        number_of_colour = {
            _packed(np.array(colour)).item(): n for colour, n in self.numbers.items()
        }
        table = np.array([number_of_colour.get(int(value), IGNORED) for value in values], np.uint8)
        strange = np.array([int(value) not in number_of_colour for value in values])
        places = places.reshape(packed.shape)
        return table[places], int(strange[places].sum())


def _packed(rgb: Any) -> Any:
    r, g, b = (rgb[..., i].astype(np.int64) for i in range(3))
    return r << 16 | g << 8 | b


def table_in(*folders: Path) -> Path | None:
    """The first table of colours in these folders."""
    paths = (folder / name for folder in folders for name in NAMES)
    return next((path for path in paths if path.is_file()), None)


def read(path: Path) -> ColourTable:
    """A table of colours, checked."""
    if not path.is_file():
        raise FileNotFoundError(f"convert: no file {str(path)!r}; --colours takes {FORMS}")
    content = text(path)
    rows = _of_json(path, content) if path.suffix.lower() == ".json" else _of_lines(path, content)
    classes: list[str] = []
    numbers: dict[Colour, int] = {}
    for name, colour in rows:
        if name.lower() in VOID:
            number = IGNORED
        else:
            if name not in classes:
                classes.append(name)
            number = classes.index(name)
        if numbers.setdefault(colour, number) != number:
            raise ValueError(f"convert: {str(path)!r}: {colour} is the colour of two classes")
    if not 2 <= len(classes) <= IGNORED:
        raise ValueError(f"convert: {str(path)!r}: from 2 to 255 classes, got {len(classes)}")
    return ColourTable(classes, numbers)


def _of_json(path: Path, content: str) -> list[tuple[str, Colour]]:
    try:
        plain = json.loads(content)
        return [(str(name), _colour(value)) for name, value in plain.items()]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"convert: {str(path)!r} is no table of colours ({error})") from error


def _colour(value: Any) -> Colour:
    if isinstance(value, str):
        value = [int(value.removeprefix("#")[i : i + 2], 16) for i in (0, 2, 4)]
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"{value!r:.40} is no colour")
    if not all(type(n) is int and 0 <= n <= 255 for n in value):
        raise ValueError(f"{value!r:.40} is no colour: three whole numbers from 0 to 255")
    return value[0], value[1], value[2]


def _of_lines(path: Path, content: str) -> list[tuple[str, Colour]]:
    rows = []
    for n, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row = _of_line(line)
        if row is None and n == 1:
            continue  # a header
        if row is None:
            raise ValueError(f"convert: {str(path)!r}, line {n}: wanted {FORMS}; got {line!r:.60}")
        rows.append(row)
    return rows


def _of_line(line: str) -> tuple[str, Colour] | None:
    """The name and colour of a line in one of the four ways they are written."""
    cvat = re.fullmatch(r"([^:]+):(\d+),(\d+),(\d+):.*", line.strip())
    if cvat:
        cells = [cvat[1], cvat[2], cvat[3], cvat[4]]
    elif "," in line:
        cells = [cell.strip() for cell in next(csv.reader([line]))][:4]
    else:
        cells = line.split()
    first = re.fullmatch(r"\s*(\d+)[\s,]+(\d+)[\s,]+(\d+)[\s,]+(\S.*?)\s*", line)
    if first and not cvat:
        cells = [first[4], first[1], first[2], first[3]]
    elif len(cells) > 4:
        cells = [" ".join(cells[:-3]), *cells[-3:]]
    if len(cells) < 4 or not cells[0]:
        return None
    try:
        return cells[0], _colour([int(cell) for cell in cells[1:4]])
    except ValueError:
        return None


def voc_palette(count: int) -> list[Colour]:
    """The colours that VOC draws ids in: the bits of an id spread over those of r, g and b."""
    colours = []
    for i in range(count):
        r = g = b = 0
        for bit in range(8):
            part = i >> 3 * bit
            r |= (part & 1) << 7 - bit
            g |= (part >> 1 & 1) << 7 - bit
            b |= (part >> 2 & 1) << 7 - bit
        colours.append((r, g, b))
    return colours
