"""One number that a paper prints, as a string, so that a test can compare the code with it.

A `Claim` is one cell of one table. "18.0M" carries its own precision: it holds when the measured
number, rounded to as many digits, prints the same.
"""

import re
from dataclasses import dataclass

UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "%": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.(\d+))?)\s*([KMGB%]?)")


@dataclass(frozen=True)
class Claim:
    """One printed cell: its place in the paper, what it counts, and the string as printed.

    `differs` gives the reason why our count is another one. It is itself under test: once code and
    paper agree, the reason must go. `unmeasured` says why nothing counts what could be counted.
    """

    where: str
    what: str
    said: str
    differs: str = ""
    unmeasured: str = ""

    @property
    def number(self) -> float | None:
        """The printed number in units, or None where the cell is text (a list of widths)."""
        match = _NUMBER.fullmatch(self.said)
        return float(match[1]) * UNITS[match[3]] if match else None

    def show(self, measured: object) -> str:
        """The measurement, written the way the paper writes its own."""
        match = _NUMBER.fullmatch(self.said)
        if match is None or not isinstance(measured, int | float):
            return str(measured)
        digits = len(match[2] or "")
        return f"{measured / UNITS[match[3]]:.{digits}f}{match[3]}"

    def holds(self, measured: object) -> bool:
        return self.show(measured) == self.said
