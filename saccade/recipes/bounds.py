"""The allowed ranges of a recipe's numbers."""

import math
import sys
from typing import Any

SHARE, COUNT, SOME = (0, 1), (0, math.inf), (1, math.inf)
SIDE = (1, 8192)  # pixels; a larger picture takes more memory than a machine has
BELOW_ONE, POSITIVE = (0, 0.999), (1e-9, math.inf)
LARGEST = sys.float_info.max  # whole numbers may be larger


def ordered(group: Any, *names: str) -> None:
    """Refuse a range that ends before it begins, or at zero."""
    for name in names:
        low, high = getattr(group, name)
        if not 0 < low <= high:
            word = f"{type(group).__name__.lower()}.{name}"
            raise ValueError(
                f"{word}: from a smaller to a larger number, "
                f"got {_number_words(low)} to {_number_words(high)}"
            )


def hold(group: Any, **bounds: tuple[float, float]) -> None:
    """Refuse values outside their bounds, before a run begins with them."""
    for name, (low, high) in bounds.items():
        value = getattr(group, name)
        if value is not None and not low <= value <= min(high, LARGEST):
            range_words = f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
            raise ValueError(
                f"{type(group).__name__.lower()}.{name}: {range_words}, got {_number_words(value)}"
            )


def _number_words(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "a number beyond all bounds"
