"""Where the command line prints: results to stdout, everything else to stderr.

Text is printed as it is. Brackets are not markup, so `pip install 'saccade[viz]'` is printed whole;
bold and coloured text is made by `style` or a rich `Text`.
"""

import json
import re
import sys
from typing import Any

STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
WIDE = 100_000  # columns of a pipe or a file, whose lines are never cut


def console(stderr: bool = False) -> Any:
    """A new rich console: the streams and their width may change between calls."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, width=width, markup=False, highlight=False, soft_wrap=True)


def say(text: Any = "", style: str | None = None) -> None:
    """A sentence that is part of the result."""
    console().print(_plain(text), style=style)


def note(text: Any, style: str | None = None) -> None:
    """A sentence beside the result: progress, a warning, what to do next."""
    console(stderr=True).print(_plain(text), style=style)


def _plain(text: Any) -> Any:
    """Without characters that would steer the terminal; names of files and classes may hold any."""
    if isinstance(text, str):
        return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text)
    if hasattr(text, "plain"):
        text.plain = _plain(text.plain)
    return text


def show(table: Any) -> None:
    """A table or a tree, as wide as the terminal, or wider where a name would be cut off."""
    from rich.measure import Measurement

    out = console()
    least = Measurement.get(out, out.options.update(max_width=WIDE), table).minimum
    with out.capture() as capture:
        out.print(table, width=max(out.width, least), soft_wrap=False, crop=False)
    for line in capture.get().splitlines():
        parts = STYLE.split(line)  # a name that holds an escape code can only be coloured
        print("".join(part if STYLE.fullmatch(part) else _plain(part) for part in parts).rstrip())


def show_json(value: Any) -> None:
    """One line of JSON, and nothing that is not JSON."""
    print(json.dumps(value, allow_nan=False))


def table(*heads: str, right: tuple[str, ...] = (), prose: tuple[str, ...] = ()) -> Any:
    """An empty table without lines. Columns of `prose` wrap in a narrow terminal, others never."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    for head in heads:
        justify = "right" if head in right else "left"
        least = 24 if head in prose else None
        grid.add_column(head, justify=justify, no_wrap=head not in prose, min_width=least)
    return grid
