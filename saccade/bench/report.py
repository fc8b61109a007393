"""Show a comparison: as a table in the terminal, as JSON lines, and as a bar chart."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from saccade.bench.deployment import Deployment
from saccade.bench.machine import stamp
from saccade.bench.run import Comparison, Row
from saccade.draw.style import plain_style
from saccade.files import writing

COLOUR, BASE = "#0072B2", "#D55E00"
COLOURS = [BASE, COLOUR, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
MARKS = "os^Dvx+*P"
# Which multiples of a power of ten are written on a scale, by how far it reaches.
TICKS = {4: (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), 100: (1, 2, 5), math.inf: (1,)}


def table(run: Comparison) -> Table:
    """A row a peer; ratios are to `run.against`."""
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.add_column("", overflow="fold", min_width=9)
    for column in ("best ms", "median ms", "CPU ms", "x time", "peak MB", "x peak", "GFLOP/s"):
        out.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    out.add_column("of\nlimit", justify="right", no_wrap=True)
    for row in run.rows:
        times = (digits(1e3 * seconds) for seconds in (row.best, row.median, row.cpu))
        share, which = row.of_limit
        out.add_row(
            row.name, *times, digits(row.slower), digits(row.peak / 2**20), digits(row.heavier),
            digits(row.gflops), f"{share:.0%} {which[0]}",
            style="bold" if row.name == run.against else "",
        )  # fmt: skip
    return out


def notes(run: Comparison) -> list[str]:
    """Remarks below the table, a line each."""
    clock = "CPU time of one thread" if run.by == "cpu" else "wall time"
    lines = [f"x: best {clock}, and peak memory, over those of {run.against}; all ran in turns"]
    if run.limits is not None:
        compute = f"compute (c, {run.limits.gflops:.0f} GFLOP/s in a matrix product)"
        memory = f"memory (m, {run.limits.gbytes:.0f} GB/s in a copy)"
        lines.append(f"limit: the nearer of {compute} and {memory}, in the same run")
    lines += [f"left out: {name}: {reason}" for name, reason in run.left_out.items()]
    if run.interrupted:
        lines.append("interrupted: " + ("figures so far" if run.rows else "nothing measured yet"))
    return lines


def deployment_table(run: Deployment) -> Table:
    """A row a way; ratios are to eager."""
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.add_column("", overflow="fold", min_width=20)
    for column in ("best ms", "median ms", "x as fast", "images /s", "memory MB", "file MB"):
        out.add_column(column.replace(" ", "\n", 1), justify="right", no_wrap=True)
    out.add_column("from\neager", justify="right", no_wrap=True)
    models = list(dict.fromkeys(row.model for row in run.rows))
    for row in run.rows:
        label = row.way if len(models) == 1 else f"{row.model}, {row.way}"
        out.add_row(
            label, digits(1e3 * run.seconds(row)), digits(1e3 * row.median),
            digits(run.of_eager(row)), digits(row.images), digits(row.held / 2**20),
            digits(row.file / 1e6) if row.file else "", f"{row.apart:.0e}" if row.apart else "0",
        )  # fmt: skip
    return out


def deployment_notes(run: Deployment) -> list[str]:
    clock = "CPU time of one thread" if run.by == "cpu" else "wall time"
    lines = [
        f"best: {clock}; x: of eager; all in turns, each in a process of its own, whose memory at "
        "most is told; weights drawn by chance, ranges of int8 from noise",
    ]
    lines += [f"left out: {name}: {reason}" for name, reason in run.left_out.items()]
    if run.interrupted:
        lines.append("interrupted: " + ("figures so far" if run.rows else "nothing measured yet"))
    return lines


def deployment_lines(run: Deployment, **about: Any) -> list[dict[str, Any]]:
    """For JSON: a dict per row, with the versions and settings it was measured under."""
    under = {**about, "by": run.by, "machine": stamp()}
    return [{**asdict(row), "of_eager": run.of_eager(row), **under} for row in run.rows]


@plain_style()
def draw_deployment(run: Deployment, path: str | Path, title: str) -> None:
    """Time and memory of every way, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    one = len({row.model for row in run.rows}) == 1
    labels = [row.way if one else f"{row.model}, {row.way}" for row in run.rows]
    figure, axes = plt.subplots(
        1, 2, figsize=(9, 0.36 * len(labels) + 1.3), sharey=True, layout="constrained"
    )
    times = [1e3 * run.seconds(row) for row in run.rows]
    megabytes = [row.held / 2**20 for row in run.rows]
    for axis, values, what in zip(
        axes, (times, megabytes), ("ms for a batch", "memory of the process, MB"), strict=True
    ):
        colours = [BASE if "our" in row.way else COLOUR for row in run.rows]
        axis.barh(labels, values, color=colours, height=0.6)
        axis.set(title=what, xlim=(0, 1.25 * max(values)))
        for label, value in zip(labels, values, strict=True):
            axis.annotate(
                digits(value), (value, label), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=9,
            )  # fmt: skip
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def digits(value: float) -> str:
    """Three digits that count, or all before the point."""
    places = next((n for n in range(3) if value >= 10 ** (2 - n)), 3)
    return f"{value:.{places}f}" if value >= 0.01 or not value else f"{value:.2g}"


def lines(run: Comparison, **about: Any) -> list[dict[str, Any]]:
    """For JSON: a dict per row, with the versions and settings it was measured under."""
    limits = None if run.limits is None else run.limits._asdict()
    under = {**about, "against": run.against, "by": run.by, "limits": limits, "machine": stamp()}
    return [{**asdict(row), **under} for row in run.rows]


def append_json(run: Comparison, path: str | Path, **about: Any) -> None:
    """Append a JSON line per row to a file."""
    append_lines(lines(run, **about), path)


def append_lines(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    with open(path, "a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


@plain_style()
def draw(run: Comparison, path: str | Path, title: str) -> None:
    """Time and memory side by side, as PNG: bars, or points on a log scale if far apart."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(9, 0.4 * len(run.rows) + 1.3), sharey=True, layout="constrained"
    )
    times = [(row.cpu if run.by == "cpu" else row.best) * 1e3 for row in run.rows]
    peaks = [row.peak / 2**20 for row in run.rows]
    clock = "CPU time" if run.by == "cpu" else "wall time"
    _bars(axes[0], run.rows, times, [row.slower for row in run.rows], run.against)
    _bars(axes[1], run.rows, peaks, [row.heavier for row in run.rows], run.against)
    axes[0].set(title=f"best {clock}, ms")
    axes[1].set(title="peak memory, MB")
    axes[0].invert_yaxis()
    figure.suptitle(f"{title}\n(x: over {run.against})", fontsize=11)
    with writing(path):
        figure.savefig(path, dpi=150)
    plt.close(figure)


@plain_style()
def draw_over(
    runs: Mapping[int, Comparison], path: str | Path, title: str, axis: str = "side, pixels"
) -> None:
    """Time and memory of each peer over what the runs are keyed by, as PNG on log scales."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator

    by = next(iter(runs.values())).by
    rows = [(at, row) for at, run in runs.items() for row in run.rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for i, name in enumerate(dict.fromkeys(row.name for _, row in rows)):
        own = [(at, row) for at, row in rows if row.name == name]
        where = [at for at, _ in own]
        style: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)], "marker": MARKS[i % len(MARKS)], "label": name,
            # Curves that coincide are seen one within the other.
            "markersize": max(10 - 3 * i, 4), "linewidth": max(4.0 - 1.5 * i, 1.0),
        }  # fmt: skip
        times = [(row.cpu if by == "cpu" else row.best) * 1e3 for _, row in own]
        left.plot(where, times, **style)
        right.plot(where, [row.peak / 2**20 for _, row in own], **style)
    clock = "CPU time" if by == "cpu" else "wall time"
    for part, what in ((left, f"best {clock}, ms"), (right, "peak memory, MB")):
        part.set(title=what, xlabel=axis, xscale="log", yscale="log")
        part.set_xticks([*runs], [str(at) for at in runs])
        part.minorticks_off()
        low, high = part.get_ylim()
        near = next(subs for most, subs in TICKS.items() if high <= most * low)
        part.yaxis.set_major_locator(LogLocator(subs=near))
        part.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
        part.grid(alpha=0.3)
        part.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle(title, fontsize=11)
    with writing(path):
        figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(
    axis: Any, rows: Sequence[Row], values: list[float], ratios: list[float], against: str
) -> None:
    colours = [BASE if row.name == against else COLOUR for row in rows]
    names = [row.name for row in rows]
    least = min((value for value in values if value > 0), default=1.0)
    if max(values) > 20 * least:
        values = [max(value, least) for value in values]
        axis.set(xscale="log", xlim=(least / 2, 12 * max(values)))
        axis.scatter(values, names, c=colours, zorder=3)
        axis.grid(alpha=0.3)
    else:
        axis.barh(names, values, color=colours, height=0.6)
        axis.set(xlim=(0, 1.4 * max(*values, 1e-9)))
    for name, value, r in zip(names, values, ratios, strict=True):
        text = f"{digits(value)} ({digits(r)}x)"
        axis.annotate(
            text, (value, name), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9
        )
    axis.spines[["top", "right"]].set_visible(False)
