"""Draw a run's curves and confusion matrix, and several runs in one plot, as PNGs.

Backgrounds are transparent and the ink is a middle grey, so that a picture suits a light page and a
dark one; colour-blind people can tell the colours apart. Needs matplotlib (the viz extra), whose
global state is not changed.
"""

import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from saccade.draw.style import plain_style, unmarked
from saccade.report.summary import Summary, confused
from saccade.tasks.figures import FIGURES, formatted, label_of, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#7d7d7d"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLES = ("-", "--", ":", "-.")
TERM_COLOURS = COLOURS[2:]
FAR_APART = 8  # how many times the smallest loss the largest is, on a logarithmic axis
MOST_SCORES = 5  # figures that are drawn; all are in the table
LIMIT = 2000  # points of a raw curve; more cannot be told apart
NUMBERED = 40  # classes up to which cells carry a number
ROW = 0.24  # inches for a bar
MARGIN = 16  # pixels around a picture
BARS = 2000  # classes that are drawn as bars
NAMED = 200  # classes up to which rows and columns carry a name


@plain_style()
def curves(summary: Summary) -> bytes:
    """Loss, validation figures and rate over the epochs, one above the other."""
    figure = _sheet(7.5, 7.2)
    loss, score, rate = figure.subplots(3, sharex=True, height_ratios=(3, 3, 1.2))
    _losses(loss, summary)
    _scores(score, summary)
    at, rates = _along(summary, lambda line: line["rate"])
    rate.plot(at, rates, color=COLOURS[0], lw=1.5)
    _label(rate, "learning rate", x="epoch")
    rate.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    rate.set_ylim(bottom=0)
    rate.locator_params(axis="y", nbins=4)
    rate.set_xlim(0, summary.last["epoch"] * 1.02)
    _whole_epochs(rate)
    figure.align_ylabels()
    return _png(figure)


def _losses(axis: "Axes", summary: Summary) -> None:
    """The training loss, its terms and the validation loss; nothing lies beyond the axes.

    Terms of very different sizes stand on a logarithmic axis.
    """
    at, total = _along(summary, lambda line: sum(line["loss"].values()))
    curves = [total]
    if len(at):
        some = slice(None, None, math.ceil(len(at) / LIMIT))
        axis.plot(at[some], total[some], color=COLOURS[0], lw=0.8, alpha=0.45)
        axis.plot(at, smoothed(total), color=COLOURS[0], lw=1.8, label="training")
    terms = list(summary.steps[-1]["loss"]) if summary.steps else []
    several = terms if len(terms) > 1 else []
    for i, name in enumerate(several):
        at, term = _along(summary, lambda line, name=name: line["loss"].get(name, math.nan))
        colour, style = TERM_COLOURS[i % len(TERM_COLOURS)], STYLES[1 + i // len(TERM_COLOURS) % 3]
        label = unmarked(label_of(name))
        axis.plot(at, smoothed(term), color=colour, lw=1.2, ls=style, label=label)
        curves.append(smoothed(term))
    epochs, values = _evaluated(summary, "loss")
    if np.isfinite(values).any():
        axis.plot(epochs, values, color=COLOURS[1], lw=1.8, marker="o", ms=4, label="validation")
        curves.append(values)
    _label(axis, "loss")
    _legend(axis)
    parts = [part[np.isfinite(part)] for part in curves]
    if any(len(part) for part in parts):
        _limits(axis, [part for part in parts if len(part)], logarithmic=bool(several))
    else:
        _nothing(axis)


def _limits(axis: "Axes", parts: Sequence[np.ndarray], logarithmic: bool) -> None:
    """An axis that holds all curves; one spike of the first, the raw loss, does not flatten it."""
    low = min(part.min() for part in parts)
    most, high = np.percentile(parts[0], 99), parts[0].max()
    least = parts[0].min()
    high = most if high - least > 2 * (most - least) > 0 else high
    high = max([high, *(part.max() for part in parts[1:])])
    if logarithmic and low > 0 and high / low > FAR_APART:
        axis.set_yscale("log")
        room = (high / low) ** 0.05
        axis.set_ylim(low / room, high * room)
        return
    room = 0.05 * (high - low) or 0.1
    axis.set_ylim(low - room, high + room)


def _scores(axis: "Axes", summary: Summary) -> None:
    names = _important(summary)
    for i, name in enumerate(names):
        epochs, values = _evaluated(summary, name)
        if np.isfinite(values).any():
            axis.plot(
                epochs, values, color=COLOURS[i % len(COLOURS)], ls=STYLES[i % len(STYLES)],
                lw=2.0 if name == summary.figure else 1.3, marker="o", ms=4, zorder=3 - i / 10,
                label=unmarked(label_of(name)),
            )  # fmt: skip
    best = summary.value(summary.best)
    if math.isfinite(best):
        at = summary.best["epoch"]
        axis.plot([at], [best], "o", ms=11, mfc="none", mec=COLOURS[0], mew=1.5, clip_on=False)
        title = f"best {label_of(summary.figure)}: {formatted(summary.figure, best)}, epoch {at}"
        axis.set_title(title, fontsize=10, loc="left", color=INK)
    else:
        _nothing(axis)
    if summary.baseline is not None:
        name, value = summary.baseline
        axis.axhline(
            value, color=INK, lw=1.2, ls=":", label=unmarked(f"{_short(name, 30)}: {value:g}")
        )
    _label(axis, f"validation{_unit(summary.figure)}")
    _legend(axis)


def _important(summary: Summary) -> list[str]:
    """The figures that are drawn: those that the task has declared, or else the first few."""
    names = [name for name in summary.figures if name not in ("images", "loss")]
    known_figures = [name for name in names if name in FIGURES]
    return (known_figures if summary.figure in known_figures else names)[:MOST_SCORES]


# -- confusion ------------------------------------------------------------------------------


@plain_style()
def confusion(matrix: list[list[int]], classes: list[str]) -> bytes:
    """Draw a confusion matrix (row: true class, column: predicted class) as shares of the row."""
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    counts = np.asarray(matrix, float)
    n = len(counts)
    rows = counts.sum(1, keepdims=True)
    shares = np.divide(counts, rows, out=np.full_like(counts, np.nan), where=rows > 0)
    side = min(max(0.45 * n, 3.6), 13.0)
    font = min(max(72 * side / n * 0.75, 3.0), 9.0)
    names = [unmarked(_short(name, 22 if n <= 60 else 16)) for name in classes]
    longest = 0.6 * font / 72 * max(map(len, names)) if n <= NAMED else 0.0
    lying = longest < 0.9 * side / n
    words = 9 * max(side / 7, 1)
    sentences = [_sentence(*pair) for pair in confused(matrix, classes)]
    # The axes stand at a known place, which is faster than a layout of 400 labels; `_png` crops.
    left, beneath = longest + 0.8, longest + 0.8 + words / 72 * (2 + 1.5 * len(sentences))
    width = max(left + side + 1.5, left + 0.65 * words / 72 * max(map(len, sentences), default=0))
    height = side + beneath + 0.3
    figure = _sheet(width, height, laid_out=False, dpi=130 if n <= 60 else 170)
    at = left / width, beneath / height
    axis = figure.add_axes((*at, side / width, side / height))
    bar = figure.add_axes(((left + side + 0.2) / width, at[1], 0.15 / width, 0.8 * side / height))
    colours = colormaps["cividis"].with_extremes(bad=INK)  # a class without images has no shares
    image = axis.imshow(shares, cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    _label(axis, "true class", x="predicted class", size=words + 1)
    axis.grid(False)
    if n <= NAMED:
        axis.set_xticks(range(n), names, rotation=0 if lying else 90, fontsize=font)
        axis.set_yticks(range(n), names, fontsize=font)
        axis.tick_params(length=0)
    if n <= NUMBERED:
        for i, j in np.argwhere(counts > 0):
            colour = "black" if shares[i, j] > 0.25 else "white"  # of cividis under a square root
            text = f"{100 * shares[i, j]:.0f}"
            cell = min(72 * side / n * 0.42, 11.0)
            axis.text(j, i, text, ha="center", va="center", fontsize=cell, color=colour)
    scale = figure.colorbar(image, cax=bar, ticks=(0, 0.05, 0.25, 0.5, 1))
    bar.set_yticklabels(["0", "5", "25", "50", "100"])
    scale.set_label("% of the true class", color=INK, fontsize=words)
    bar.tick_params(colors=INK, labelsize=words - 1)
    scale.outline.set_visible(False)
    below = -72 * (0.2 if lying else longest) - 3 * words  # names and axis label
    axis.annotate(
        "\n".join(sentences), (0, 0), (0, below), xycoords="axes fraction",
        textcoords="offset points", va="top", fontsize=words, color=INK, annotation_clip=False,
    )  # fmt: skip
    return _png(figure)


def _sentence(truth: str, guess: str, times: int, of: int) -> str:
    share = f"{100 * times / of:.0f}%" if of else ""
    return unmarked(f"{_short(truth, 30)} taken for {_short(guess, 30)}: {times} of {of} ({share})")


# -- several runs ---------------------------------------------------------------------------


class Curve(NamedTuple):
    """A figure over the epochs: the mean of several runs and its spread."""

    label: str
    epochs: list[int]
    mean: list[float]
    spread: list[float]
    """Standard deviation; zeros for one run."""


@plain_style()
def compare(lines: Sequence[Curve], figure_name: str) -> bytes:
    """Validation curves of several settings, each with a band of one standard deviation."""
    figure = _sheet(7.5, 4.4 + 0.2 * len(lines))
    axis = figure.subplots()
    for i, line in enumerate(lines):
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
        mean, spread = _finite(line.mean), np.nan_to_num(_finite(line.spread))
        marks = "o" if len(mean) < 30 else None
        axis.plot(
            line.epochs, mean, color=colour, ls=style, lw=1.8, marker=marks, ms=3.5,
            label=unmarked(_short(line.label, 90)),
        )  # fmt: skip
        if spread.any():
            axis.fill_between(
                line.epochs, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0
            )
    _label(axis, f"validation {label_of(figure_name)}{_unit(figure_name)}", x="epoch")
    _whole_epochs(axis)
    if not any(np.isfinite(_finite(line.mean)).any() for line in lines):
        _nothing(axis)
    legend = figure.legend(loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_color(INK)
    return _png(figure)


# -- parts ----------------------------------------------------------------------------------


def smoothed(values: np.ndarray, share: float = 0.03, least: int = 7) -> np.ndarray:
    """The mean of each point and its neighbours, about `share` of all; not-a-numbers skipped."""
    width = min(max(round(share * len(values)), least), len(values)) // 2 * 2 + 1
    known = np.isfinite(values)
    if not known.any():
        return values
    sums = [
        np.convolve(np.pad(part, width // 2), np.ones(width), mode="valid")
        for part in (np.where(known, values, 0), known.astype(float))
    ]
    return np.divide(sums[0], sums[1], out=np.full(len(values), np.nan), where=sums[1] > 0.5)


def _along(summary: Summary, value: Any) -> tuple[np.ndarray, np.ndarray]:
    """A value of every recorded step, over the epochs."""
    lines = [line for line in summary.steps if line.get("loss")]
    at = np.array([line["step"] for line in lines], float) / summary.per_epoch
    return at, _finite([value(line) for line in lines])


def _evaluated(summary: Summary, name: str) -> tuple[list[int], np.ndarray]:
    epochs = [line["epoch"] for line in summary.lines]
    return epochs, _finite([line["val"].get(name, math.nan) for line in summary.lines])


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, float)
    return np.where(np.isfinite(array), array, np.nan)


def _sheet(width: float, height: float, laid_out: bool = True, dpi: int = 130) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1) if laid_out else None
    return Figure(figsize=(width, height), dpi=dpi, layout=layout)


def _label(axis: "Axes", y: str, x: str = "", size: float = 10) -> None:
    axis.set_ylabel(y, color=INK, fontsize=size)
    axis.set_xlabel(x, color=INK, fontsize=size)
    axis.tick_params(colors=INK, labelsize=9)
    axis.yaxis.get_offset_text().set_color(INK)
    axis.grid(color=INK, alpha=0.25, lw=0.6)
    for side, spine in axis.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def _whole_epochs(axis: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(axis: "Axes") -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=9, labelcolor=INK)


def _nothing(axis: "Axes") -> None:
    axis.text(0.5, 0.5, "no finite value", transform=axis.transAxes, ha="center", color=INK)
    axis.set_yticks([])


def _short(name: str, most: int) -> str:
    """The name cut to at most `most` letters."""
    name = " ".join(str(name).split())
    return name if len(name) <= most else name[: most - 1] + "…"


def _png(figure: "Figure") -> bytes:
    """The figure as a PNG with a transparent background, cropped to what is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for ground in (figure.patch, *(axis.patch for axis in figure.axes)):
        ground.set_visible(False)
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what the font lacks is drawn as a box
        canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    box = []
    for axis in (1, 0):
        (lines,) = np.nonzero(pixels[..., 3].any(axis))
        box.append(slice(max(lines[0] - MARGIN, 0), lines[-1] + MARGIN + 1))
    stream = io.BytesIO()
    Image.fromarray(pixels[*box]).save(stream, "PNG")
    return stream.getvalue()


def _unit(name: str) -> str:
    """The unit after a figure's name on an axis."""
    return f", {unit_of(name)}" if unit_of(name) else ""


# -- boxes ----------------------------------------------------------------------------------


@plain_style()
def precision(curves: dict[str, list[float]], classes: dict[str, list[float]]) -> bytes:
    """Precision over recall: a line for each way to judge an overlap, and for each class."""
    panels = [curves, classes] if len(classes) > 1 else [curves]
    figure = _sheet(6.0 * len(panels), 4.2)
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, lines, what in zip(axes, panels, ("all classes", "overlap .50"), strict=False):
        for i, (name, values) in enumerate(lines.items()):
            recalls = np.linspace(0, 1, len(values))
            area = float(np.mean(values)) if values else math.nan
            axis.plot(
                recalls, _finite(values), color=COLOURS[i % len(COLOURS)], lw=1.8,
                ls=STYLES[(i if lines is curves else i // len(COLOURS)) % len(STYLES)],
                label=unmarked(f"{_short(name, 24)}: AP {100 * area:.1f}"),
            )  # fmt: skip
        _label(axis, "precision", x="recall")
        axis.set_title(what, fontsize=10, loc="left", color=INK)
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1.02)
        _legend(axis)
    return _png(figure)


# -- a figure for each class ----------------------------------------------------------------


@plain_style()
def classes(table: Sequence[dict[str, Any]]) -> bytes:
    """A bar for each class's figure (the second column) in percent, the best on top.

    The mean is a line; classes that occur in no image are named above.
    """
    if len(table) > BARS:
        raise ValueError(f"{len(table)} classes, and at most {BARS} are drawn")
    what = list(table[0])[1]
    shares, names = [row[what] for row in table], [row["class"] for row in table]
    pairs = [(s, name) for s, name in zip(shares, names, strict=True) if s is not None]
    absent = [name for s, name in zip(shares, names, strict=True) if s is None]
    pairs.sort(key=lambda pair: pair[0])
    values = np.array([s for s, _ in pairs])
    columns = -(-len(pairs) // 50)  # of at most fifty bars each
    rows = -(-len(pairs) // columns)
    figure = _sheet(6.5 * columns, max(1.6, ROW * rows + 1.0))
    axes = np.atleast_1d(figure.subplots(1, columns))
    for i, axis in enumerate(axes):
        end = len(pairs) - i * rows
        part = pairs[max(end - rows, 0) : end]
        at = range(len(part))
        bars = axis.barh(at, [s for s, _ in part], color=COLOURS[0], height=0.72)
        axis.bar_label(bars, [f"{s:.1f}" for s, _ in part], color=INK, fontsize=8, padding=3)
        _label(axis, "", x=f"{what}, %")
        axis.set_yticks(at, [unmarked(_short(name, 28)) for _, name in part])
        axis.grid(False)
        axis.grid(axis="x", color=INK, alpha=0.25, lw=0.6)
        axis.set_axisbelow(True)
        axis.set_xlim(0, 108)
        axis.set_ylim(len(part) - rows - 0.6, len(part) - 0.4)
        axis.axvline(values.mean(), color=COLOURS[1], lw=1.4, ls="--", zorder=0.5)
    title = f"mean {what} {values.mean():.2f}% of {len(pairs)} classes"
    if absent:
        few = ", ".join(_short(name, 20) for name in absent[:5])
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        title += f"; not in the set: {few}{more}"
    axes[0].set_title(unmarked(title), fontsize=10, loc="left", color=INK)
    return _png(figure)
