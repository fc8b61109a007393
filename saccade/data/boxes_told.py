"""Sentences about a set of images with boxes: how much there is, and what is missing."""

from typing import TYPE_CHECKING

import numpy as np

from saccade.data import boxes_json
from saccade.data.boxes_json import Findings

if TYPE_CHECKING:
    from saccade.data.boxes import Boxes


def first(findings: Findings) -> str:
    said = boxes_json.told(findings, "train")
    return said[0] if said else "its list of annotations is empty"


def twice(train: "Boxes", val: "Boxes") -> list[str]:
    own = {train.name(i) for i in range(len(train))}
    both = [name for name in map(val.name, range(len(val))) if name in own]
    if not both:
        return []
    return [f"val: {len(both)} pictures are learnt from too, such as {both[0]!r}: figures flatter"]


def absent(train: "Boxes") -> list[str]:
    names = [name for name, n in zip(train.classes, train.counts(), strict=True) if not n]
    if not names:
        return []
    share = f"{len(names)} of {len(train.classes)}"
    return [f"train: {share} categories have no boxes to learn from, such as {names[0]!r}"]


def about(what: str, train: "Boxes", val: "Boxes") -> str:
    said = (counted(part) for part in (train, val))
    return f"{what}: {' to train on, '.join(said)} to validate, {len(train.classes)} classes"


def counted(boxes: "Boxes") -> str:
    """Also images without boxes, which are background, and crowds, which count neither way."""
    empty, crowds = int((np.diff(boxes.starts) == 0).sum()), int(boxes.crowd.sum())
    more = [f"images without: {empty}"] if empty else []
    more += [f"crowds: {crowds}"] if crowds else []
    apart = f" ({', '.join(more)})" if more else ""
    return f"{len(boxes)} images with {int(boxes.counts().sum())} boxes{apart}"
