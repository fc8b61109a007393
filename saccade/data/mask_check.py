"""Look through masks before a run: sizes that do not fit, and ids that no class has.

Nothing is lost by it: an id without a class is not looked at by loss and figures, and an image
whose mask does not fit is left out when it is read, and listed.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from saccade.data import picture
from saccade.data.images import Unreadable

if TYPE_CHECKING:
    from saccade.data.masks import Masks

MOST = 2000  # masks of a set that are opened; of more, so many evenly spaced ones


class Seen(NamedTuple):
    """What is odd about one image's mask."""

    broken: str = ""
    misfit: str = ""
    unknown: tuple[tuple[int, int], ...] = ()
    """Ids that no class has, and of how many pixels."""


def check(masks: "Masks", findings: dict[str, list[str]]) -> tuple[list[str], list[int]]:
    """Sentences about a set's masks, and which cannot be used; `findings` names every one."""
    count = min(len(masks), MOST)
    chosen = [i * len(masks) // count for i in range(count)]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: _look(masks, i), chosen))
    told = {"unreadable mask": [], "another size": [], "unknown ids": []}
    ids: dict[int, int] = {}
    unusable = [i for i, one in zip(chosen, seen, strict=True) if one.broken or one.misfit]
    for i, one in zip(chosen, seen, strict=True):
        name = masks.images[i]
        if one.broken:
            told["unreadable mask"].append(f"{name}: {one.broken}")
        if one.misfit:
            told["another size"].append(f"{name}: {one.misfit}")
        if one.unknown:
            said = ", ".join(f"id {i} ({n} pixels)" for i, n in one.unknown)
            told["unknown ids"].append(f"{name}: {said}")
        for key, n in one.unknown:
            ids[key] = ids.get(key, 0) + n
    if len(unusable) == count:
        first = (told["another size"] + told["unreadable mask"])[0]
        raise ValueError(f"no mask of {count} fits its image; {first}")
    for kind, lines in told.items():
        if lines:
            findings.setdefault(kind, []).extend(lines)
    return _sentences(told, ids, count, len(masks)), unusable


def _sentences(told: dict[str, list[str]], ids: dict[int, int], count: int, of: int) -> list[str]:
    some = f" (of {count} looked at, {of} in all)" if count < of else ""
    said = []
    for kind, what in (
        ("unreadable mask", "masks cannot be read and their images are left out"),
        ("another size", "masks are of another size than their image, which is left out"),
    ):
        if told[kind]:
            said.append(f"{len(told[kind])} {what}{some}: {told[kind][0]}")
    if ids:
        few = ", ".join(map(str, sorted(ids)[:8])) + (", ..." if len(ids) > 8 else "")
        said.append(
            f"{len(told['unknown ids'])} masks hold ids that no class has ({few}): "
            f"{sum(ids.values())} pixels are not looked at{some}"
        )
    return said


def _look(masks: "Masks", i: int) -> Seen:
    try:
        ids = masks.ids(i)
    except Unreadable as error:
        return Seen(broken=error.reason)
    misfit, found = "", picture.size(masks.name(i))  # None of what is none, as reading will say
    if found is not None and ids.shape[::-1] != found.upright:
        (W, H), (w, h) = ids.shape[::-1], found.upright
        misfit = f"mask {W} x {H}, image {w} x {h} pixels"
    counts = np.bincount(ids.ravel(), minlength=2**16)
    meant = [i for i in masks.legend.ignored if 0 <= i < len(counts)]
    counts[[*masks.legend.ids, *meant, 255]] = 0
    unknown = np.flatnonzero(counts)
    return Seen("", misfit, tuple((int(k), int(counts[k])) for k in unknown))
