"""Pictures with named boxes: what readers of other formats give, and `to_coco` writes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from saccade.data.findings import Findings, note


class Named(NamedTuple):
    """A box: x y w h in pixels, the first pixel at 0, and the name of its class."""

    name: str
    bbox: tuple[float, float, float, float]
    difficult: bool = False


class Labelled(NamedTuple):
    """A picture and its boxes."""

    path: Path
    name: str
    """Its file name below images/SPLIT; unique there."""
    size: tuple[int, int]
    """Width and height that the boxes refer to."""
    boxes: list[Named]


@dataclass
class Source:
    """A set in another format."""

    splits: dict[str, list[Labelled]]
    classes: list[str]
    """The classes that the set lists, in its order, or else those of its boxes."""
    findings: Findings = field(default_factory=dict)

    def note(self, kind: str, line: str) -> None:
        note(self.findings, kind, line)
