"""Size and cost of every variant, as data, so that `saccade list` answers without torch.

`python -m saccade.paper.count` counts them again; a test compares the file with the models.
"""

import fnmatch
import glob
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_suffix(".json")


class Count(NamedTuple):
    """One variant at the image side that it was made for."""

    family: str
    params: int
    macs: int
    """Multiply-adds of one image."""
    size: int
    widths: tuple[int, ...]


@cache
def counts() -> dict[str, Count]:
    """All variants by name, in the order of their families."""
    rows: dict[str, Any] = json.loads(FILE.read_text())
    return {name: Count(**row)._replace(widths=tuple(row["widths"])) for name, row in rows.items()}


def is_table_row(name: str) -> bool:
    """Whether a name stands for one row of a paper's table, such as qna_table2_2222_h2_2_2_2."""
    return re.search(r"_table\d", name) is not None


def matching(pattern: str, names: list[str]) -> list[str]:
    """The names that match a word: a pattern such as "linglo_b*", or a part such as "nano"."""
    whole = pattern if glob.has_magic(pattern) else f"*{pattern}*"
    return [name for name in names if fnmatch.fnmatch(name, whole)]
