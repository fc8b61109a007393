"""How well each class is found, as bars: for tables whose rows are classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from saccade.engine.draw import COLOURS, INK, _label, _png, _safe, _sheet, _short

ROW = 0.24  # inches


def classes(table: Sequence[dict[str, Any]]) -> bytes:
    """A bar for each class's figure (the second column) in percent, the best on top.

    The mean is a line; classes that occur in no image are named above.
    """
    what = list(table[0])[1]
    shares, names = [row[what] for row in table], [row["class"] for row in table]
    known = [(s, name) for s, name in zip(shares, names, strict=True) if s is not None]
    absent = [name for s, name in zip(shares, names, strict=True) if s is None]
    known.sort(key=lambda pair: pair[0])
    values = np.array([s for s, _ in known])
    columns = -(-len(known) // 50)  # of at most fifty bars each
    rows = -(-len(known) // columns)
    figure = _sheet(6.5 * columns, max(1.6, ROW * rows + 1.0))
    axes = np.atleast_1d(figure.subplots(1, columns))
    for i, axis in enumerate(axes):
        end = len(known) - i * rows
        part = known[max(end - rows, 0) : end]
        at = range(len(part))
        bars = axis.barh(at, [s for s, _ in part], color=COLOURS[0], height=0.72)
        axis.bar_label(bars, [f"{s:.1f}" for s, _ in part], color=INK, fontsize=8, padding=3)
        _label(axis, "", x=f"{what}, %")
        axis.set_yticks(at, [_safe(_short(name, 28)) for _, name in part])
        axis.grid(False)
        axis.grid(axis="x", color=INK, alpha=0.25, lw=0.6)
        axis.set_axisbelow(True)
        axis.set_xlim(0, 108)
        axis.set_ylim(len(part) - rows - 0.6, len(part) - 0.4)
        axis.axvline(values.mean(), color=COLOURS[1], lw=1.4, ls="--", zorder=0.5)
    title = f"mean {what} {values.mean():.2f}% of {len(known)} classes"
    if absent:
        few = ", ".join(_short(name, 20) for name in absent[:5])
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        title += f"; not in the set: {few}{more}"
    axes[0].set_title(_safe(title), fontsize=10, loc="left", color=INK)
    return _png(figure)
