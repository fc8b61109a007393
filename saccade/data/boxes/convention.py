"""Check that a json's boxes are x y w h in pixels, by looking at all of them together.

Two other conventions pass every check of a single box, and a model would be trained on wrong boxes
without a warning:

    shares of the picture    all four numbers are at most 1: a set of boxes inside the first pixel
    x0 y0 x1 y1 in pixels    read as x y w h, boxes right of or below the middle reach beyond their
                             picture; read as corners, all lie inside, the second to the right of
                             and below the first. Or the areas given fit the corners only.

Every real set has objects that touch their picture's border, large ones in its middle, and some
careless boxes; the limits below allow for these.
"""

import numpy as np
from jaxtyping import Bool, Float

LEAST = 4  # boxes; fewer are too few to judge by
SHARES = 0.2  # of the boxes, if so many lie inside the first pixel
BEYOND = 0.25  # of the boxes, if so many reach beyond their picture
MARGIN = 0.02  # of a side, by which careless boxes reach beyond it
CONSISTENT = 0.98  # of the boxes, if so many make sense as corners
FIRST_PIXEL = 1.001


def refuse_other(
    where: str,
    boxes: Float[np.ndarray, "M 4"],
    sizes: Float[np.ndarray, "M 2"],
    areas: Float[np.ndarray, "M"],
) -> None:
    """Raise if the boxes are hardly x y w h in pixels.

    Args:
        where: the file, for the message
        boxes: as written, finite, of some width and height, however little
        sizes: width and height of the picture of each; 0 if unknown
        areas: that the file gives for each; NaN if it gives none
    """
    tiny = inside_first_pixel(boxes, sizes)
    if tiny.any() and tiny.mean() >= SHARES:
        raise ValueError(
            f"{where}: {tiny.mean():.0%} of its boxes have no number above 1, such as "
            f"{_numbers(boxes[tiny][0])}: they are shares of the picture; COCO's are x y w h in "
            "pixels, so multiply x and w by the width, y and h by the height"
        )
    if are_corners(boxes, sizes, areas):
        raise ValueError(
            f"{where}: its boxes are two corners, x0 y0 x1 y1, such as {_numbers(boxes[0])}: read "
            "as COCO's x y w h, many would reach beyond their picture, read as corners none does; "
            "write x0, y0, x1 - x0, y1 - y0"
        )


def inside_first_pixel(
    boxes: Float[np.ndarray, "M 4"], sizes: Float[np.ndarray, "M 2"]
) -> Bool[np.ndarray, "M"]:
    """Boxes inside the first pixel, which are probably shares of their picture."""
    small = (boxes <= FIRST_PIXEL).all(1) & (boxes >= 1 - FIRST_PIXEL).all(1)
    return small & ((sizes == 0) | (sizes >= 8)).all(1)


def are_corners(
    boxes: Float[np.ndarray, "M 4"],
    sizes: Float[np.ndarray, "M 2"],
    areas: Float[np.ndarray, "M"],
) -> bool:
    """Whether the third and fourth number are a corner rather than a width and a height."""
    known = (sizes > 0).all(1)
    boxes, sizes, areas = boxes[known], sizes[known], areas[known]
    if len(boxes) < LEAST:
        return False
    first, second = boxes[:, :2], boxes[:, 2:]
    slack = 1 + MARGIN * sizes
    corners = (second > first).all(1) & (second <= sizes + slack).all(1)
    if corners.mean() < CONSISTENT:
        return False
    beyond = (first + second > sizes + slack).any(1)
    if beyond.sum() >= 2 and beyond.mean() >= BEYOND:
        return True
    as_corners, as_sides = (second - first).prod(1), second.prod(1)
    telling = np.isfinite(areas) & (as_corners < 0.98 * as_sides)  # not at the upper left
    fits = np.abs(areas[telling] - as_corners[telling]) <= 0.01 * as_corners[telling]
    return len(fits) >= LEAST and bool(fits.mean() >= CONSISTENT)


def _numbers(box: Float[np.ndarray, "4"]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in box) + "]"
