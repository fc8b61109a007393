"""What a metric leaves beside its figures: confusion, examples to look at, pictures of its own.

They may come from a stranger's run: what is not as saccade writes it is left out.
"""

import base64
import contextlib
import io
import re
from typing import Any, NamedTuple

from PIL import Image

BEYOND = 2**63
PNG = b"\x89PNG\r\n\x1a\n"
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class Picture(NamedTuple):
    """A picture that a metric drew itself."""

    name: str
    caption: str
    png: bytes

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()


class Tables:
    """The plain values that `Metric.tables` gave, read with care."""

    def __init__(self, plain: dict[str, Any]):
        self.plain = plain

    @property
    def confusion(self) -> tuple[list[list[int]], list[str]]:
        """The confusion matrix (row: the truth) and its classes; empty where none was kept."""
        matrix, classes = self.plain.get("confusion"), self.plain.get("classes")
        if not (matrix and classes and isinstance(matrix, list) and isinstance(classes, list)):
            return [], []
        of_numbers = all(
            isinstance(row, list) and len(row) == len(classes) and all(map(is_number, row))
            for row in matrix
        )
        of_names = all(isinstance(name, str) for name in classes)
        whole = len(matrix) == len(classes) and of_numbers and of_names
        return (matrix, classes) if whole else ([], [])

    @property
    def about_confusion(self) -> str:
        """What the matrix counts, in a sentence; empty for images."""
        return str(self.plain.get("about_confusion", ""))[:400]

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """Figures of each class."""
        rows = self.plain.get("per_class")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    @property
    def precision(self) -> dict[str, list[float]]:
        """Precision at evenly spaced recalls, by the way to judge an overlap."""
        return self._curves("precision")

    @property
    def precision_of_classes(self) -> dict[str, list[float]]:
        """The same of single classes, at an overlap of one half."""
        return self._curves("precision_of_classes")

    @property
    def examples(self) -> dict[str, list[tuple[str, str]]]:
        """Captions and JPEGs in base64 of images to look at, by what they have in common."""
        groups = self.plain.get("examples", {})
        if not isinstance(groups, dict):
            return {}
        return {
            str(title)[:100]: [
                (str(row.get("caption", ""))[:200], row["jpeg"])
                for row in rows
                if isinstance(row, dict) and BASE64.fullmatch(str(row.get("jpeg", "")))
            ]
            for title, rows in groups.items()
            if isinstance(rows, list)
        }

    @property
    def pictures(self) -> list[Picture]:
        """What the task's metric drew, apart from its tables; what is no PNG is left out."""
        pictures, entries = [], self.plain.get("pictures")
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            # Older runs have the PNG alone.
            about: Any = entry if isinstance(entry, dict) else {"png": entry}
            safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:100]
            caption = str(about.get("caption", name.replace("_", " ")))
            with contextlib.suppress(ValueError, TypeError):
                content = base64.b64decode(about.get("png"), validate=True)
                if content.startswith(PNG):
                    pictures.append(Picture(safe, caption, content))
        return pictures

    def _curves(self, name: str) -> dict[str, list[float]]:
        curves = self.plain.get(name)
        return {
            key: values
            for key, values in (curves.items() if isinstance(curves, dict) else ())
            if isinstance(values, list) and all(map(is_number, values))
        }


def is_number(value: Any) -> bool:
    """Whether it can be computed with; JSON also has integers beyond all floats."""
    return type(value) is float or (type(value) is int and abs(value) < BEYOND)


def jpeg_image(jpeg: str) -> Image.Image:
    """A JPEG in base64 as a picture."""
    photo = Image.open(io.BytesIO(base64.b64decode(jpeg)), formats=("JPEG",))
    photo.load()
    return photo
