"""Colours for classes that most eyes tell apart.

The first seven are Okabe and Ito's, and a grey. Each further one is the colour, of a grid over all,
that lies farthest from those before it, for normal eyes and for those that lack one kind of cone:
the distance of two colours is the least of the three, in CIE Lab.
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt8

FIRST = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167), (90, 90, 90),
)  # fmt: skip
GRID = np.linspace(20, 250, 9)  # neither black nor white: those are the lines between regions

# What is seen without long-wave (protan) and medium-wave (deutan) cones, on linear RGB
# (Vienot, Brettel and Mollon, 1999).
CONES = np.array(
    [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    ]
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = XYZ.sum(1)


@lru_cache(maxsize=8)
def palette(count: int) -> UInt8[np.ndarray, "count 3"]:
    """This many colours; a longer palette begins with the colours of a shorter one."""
    colours = [np.array(colour, float) for colour in FIRST[:count]]
    grid = np.stack(np.meshgrid(GRID, GRID, GRID, indexing="ij"), -1).reshape(-1, 3)
    places = as_seen_by_three(grid)
    nearest = np.full(len(grid), np.inf)
    for colour in colours:
        nearest = np.minimum(nearest, _apart(places, as_seen_by_three(colour[None])))
    while len(colours) < count:
        far = int(nearest.argmax())
        colours.append(grid[far])
        nearest = np.minimum(nearest, _apart(places, places[:, far : far + 1]))
    return np.array(colours).round().astype(np.uint8)


def as_seen_by_three(colours: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "3 N 3"]:
    """RGB in 0..255 to CIE Lab, as three kinds of eyes see it."""
    x = colours / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    linear = np.einsum("eij,nj->eni", CONES, linear).clip(0, 1)
    t = linear @ XYZ.T / WHITE
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    X, Y, Z = np.moveaxis(f, -1, 0)
    return np.stack((116 * Y - 16, 500 * (X - Y), 200 * (Y - Z)), -1)


def _apart(a: Float[np.ndarray, "3 N 3"], b: Float[np.ndarray, "3 1 3"]) -> Float[np.ndarray, "N"]:
    """The least distance over the three kinds of eyes."""
    return np.linalg.norm(a - b, axis=-1).min(0)
