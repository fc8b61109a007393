"""The tables of src/gelu.h: sixteen polynomials for each form of GELU, and their error.

python benchmarks/gelu_table.py
"""

import math
from collections.abc import Callable

import numpy as np

END, PIECES, DEGREE = 5.5, 16, 4
WIDTH = END / (PIECES - 0.5)  # of a piece; the first is half a one


def erf(a: np.ndarray) -> np.ndarray:
    """F(-a) of the normal distribution."""
    return np.array([0.5 * math.erfc(x / math.sqrt(2)) for x in a])


def tanh(a: np.ndarray) -> np.ndarray:
    """What GELU's other form has in its place."""
    return 1 / (1 + np.exp(math.sqrt(8 / math.pi) * (a + 0.044715 * a**3)))


def coefficients(tail: Callable) -> np.ndarray:
    """DEGREE + 1 rows: piece i is a polynomial in r, a = (i + r) WIDTH, |r| <= 1/2."""
    points = 0.5 * np.cos((2 * np.arange(DEGREE + 1) + 1) / (2 * DEGREE + 2) * np.pi)  # Chebyshev's
    pieces = [
        np.polynomial.polynomial.polyfit(points, tail((i + points) * WIDTH), DEGREE)
        for i in range(PIECES)
    ]
    return np.array(pieces).T.astype(np.float32)


def largest_error(tail: Callable, rows: np.ndarray) -> float:
    """Of F, in float32, over all that the table covers."""
    a = np.linspace(0, END - 0.01, 100_001)
    z = a.astype(np.float32) * np.float32(1 / WIDTH)
    i = np.rint(z).astype(int)
    r = z - i.astype(np.float32)
    p = rows[DEGREE][i]
    for j in reversed(range(DEGREE)):
        p = p * r + rows[j][i]
    return float(np.abs(p - tail(a)).max())


if __name__ == "__main__":
    for tail in (erf, tanh):
        rows = coefficients(tail)
        for row in rows:
            print("{" + ", ".join(f"{x:.9g}f" for x in row) + "},")
        error = largest_error(tail, rows)
        print(f"{tail.__name__}: steps {1 / WIDTH:.10g}, largest error {error:.2g}")
