"""What a metric leaves beside its figures: confusion, examples to look at, pictures of its own.

They may come from a stranger's run: what is not as saccade writes it is left out.
"""

import base64
import re
from typing import Any, NamedTuple

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
        return (matrix, classes) if matrix and classes else ([], [])

    @property
    def about_confusion(self) -> str:
        """What the matrix counts, in a sentence; empty for images."""
        return str(self.plain.get("about_confusion", ""))[:400]

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """Figures of each class."""
        return [row for row in self.plain.get("per_class") or [] if isinstance(row, dict)]

    @property
    def precision(self) -> dict[str, list[float]]:
        """Precision at evenly spaced recalls, by the way to judge an overlap."""
        return self.plain.get("precision") or {}

    @property
    def precision_of_classes(self) -> dict[str, list[float]]:
        """The same of single classes, at an overlap of one half."""
        return self.plain.get("precision_of_classes") or {}

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
        """What the task's metric drew, apart from its tables."""
        pictures = []
        for name, entry in self.plain.get("pictures", {}).items():
            about = entry if isinstance(entry, dict) else {"png": entry}  # as older runs have it
            safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
            caption = about.get("caption", name.replace("_", " "))
            pictures.append(Picture(safe, caption, base64.b64decode(about["png"])))
        return pictures
