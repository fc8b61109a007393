"""Outlines of objects as COCO writes them: polygons, or lengths of runs down the columns.

    [[x, y, x, y, ...], ...]                     polygons of three points or more
    {"size": [H, W], "counts": [n, n, ...]}      runs of nothing and of the object, in turn
    {"size": [H, W], "counts": "..."}            the same, compressed to text

All become compressed runs, the form in which faster-coco-eval counts. Sizes and lengths that a file
states are checked here before they are used.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import UInt8

FARTHEST = 1e5  # pixels
FEWEST = 6  # numbers of a polygon
MOST_RUNS = 10**7


def compressed(outline: Any, size: tuple[int, int]) -> bytes | None:
    """The runs of an outline in an image of a width and height; None if it is no outline."""
    W, H = size
    if not (W and H):
        return None
    if isinstance(outline, list):
        return _of_polygons(outline, W, H)
    if isinstance(outline, dict):
        return _of_runs(outline, W, H)
    return None


def decoded(runs: list[bytes], size: tuple[int, int]) -> UInt8[np.ndarray, "n H W"]:
    """Masks of ones and zeros, of runs that `compressed` or `encoded` gave."""
    W, H = size
    if not runs:
        return np.zeros((0, H, W), np.uint8)
    masks = _package().decode([{"size": [H, W], "counts": one} for one in runs])
    return np.ascontiguousarray(masks.transpose(2, 0, 1))


def encoded(masks: UInt8[np.ndarray, "n H W"]) -> list[bytes]:
    """The runs of masks."""
    if not len(masks):
        return []
    return [one["counts"] for one in _package().encode(np.asfortranarray(masks.transpose(1, 2, 0)))]


def _of_polygons(polygons: list[Any], W: int, H: int) -> bytes | None:
    clean = []
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) < FEWEST or len(polygon) % 2:
            continue
        if not all(type(n) in (int, float) and math.isfinite(n) for n in polygon):
            continue
        clean.append([float(min(max(n, -FARTHEST), FARTHEST)) for n in polygon])
    if not clean:
        return None
    runs = _package().segmToRle(clean, W, H)["counts"]
    return runs if _package().area({"size": [H, W], "counts": runs}) > 0 else None


def _of_runs(outline: dict[str, Any], W: int, H: int) -> bytes | None:
    counts = outline.get("counts")
    if outline.get("size") != [H, W]:
        return None
    if isinstance(counts, str):
        counts = uncompressed(counts)
    if not isinstance(counts, list) or not 0 < len(counts) <= MOST_RUNS:
        return None
    if not all(type(n) is int and 0 <= n <= W * H for n in counts) or sum(counts) != W * H:
        return None
    values = np.arange(len(counts)) % 2
    flat = np.repeat(values, counts).astype(np.uint8)
    if not flat.any():
        return None
    return encoded(flat.reshape(W, H).T[None])[0]


def uncompressed(text: str) -> list[int] | None:
    """Lengths of runs in COCO's compressed text; None if it is none.

    Five bits a letter, the lowest first, a further one while bit 32 is set; from the third run on a
    number is the difference to the one two before.
    """
    counts: list[int] = []
    at = 0
    while at < len(text):
        number, bits, more = 0, 0, True
        while more:
            if at >= len(text) or bits > 60:
                return None
            letter = ord(text[at]) - 48
            if not 0 <= letter < 64:
                return None
            number |= (letter & 31) << bits
            more, at, bits = bool(letter & 32), at + 1, bits + 5
            if not more and letter & 16:
                number -= 1 << bits
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
    return counts


def _package() -> Any:
    try:
        from faster_coco_eval.core import mask
    except ImportError as error:
        raise ImportError(
            "masks of objects are read by faster-coco-eval: pip install 'saccade[detection]'"
        ) from error
    return mask
