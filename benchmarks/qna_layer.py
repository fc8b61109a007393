"""One QnA layer beside the others that it could stand in for, at equal width: time and memory.

    python benchmarks/qna_layer.py [--sides 28 56 112] [--windows 3 5 7] [--out qna_layer.png]

Every layer maps B H W C to B H W C with its own projections. Timed is one training step (forward
and backward), in turns; memory is what torch holds at most during such a step. The paper's claim:
up to 10x less memory and 5x faster than existing local attention, that is, SASA.
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from saccade.bench import interleave, peak_memory
from saccade.layers.dot import DotProductAttention
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.window import WindowAttention

try:
    from saccade.layers.sasa import StandAloneAttention
except ImportError:
    StandAloneAttention = None


COLOURS = ["#0072B2", "#56B4E9", "#009E73", "#000000", "#CC79A7", "#E69F00", "#D55E00", "#999999"]


class DepthwiseLayer(nn.Module):
    """A depth-wise convolution between two projections: QnA with a kernel that ignores content."""

    def __init__(self, dim: int, window: int):
        super().__init__()
        self.value, self.mix = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.conv = nn.Conv2d(dim, dim, window, padding=window // 2, groups=dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.value(x).permute(0, 3, 1, 2)
        return self.mix(self.conv(v).permute(0, 2, 3, 1))


class ChannelsFirst(nn.Module):
    """A layer of NCHW maps among those of NHWC."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def contenders(dim: int, heads: int, window: int) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {
        "QnA": LearnedQueryAttention(dim, heads, window),
        "QnA, 1 query": LearnedQueryAttention(dim, heads, window, queries=1),
        "QnA, as printed": LearnedQueryAttention(dim, heads, window, form="convolved"),
        "depth-wise": DepthwiseLayer(dim, window),
        "windows of 7": WindowAttention(dim, heads, 7),
        "global, fused": DotProductAttention(dim, heads),
    }
    if StandAloneAttention is not None:
        for form in ("unfolded", "auto"):
            layer = StandAloneAttention(dim, heads=heads, window=window, form=form)
            layers[f"SASA, {form}"] = ChannelsFirst(layer)
    return layers


Figures = dict[str, tuple[float, int]]  # seconds of CPU, bytes


def measure(a: argparse.Namespace, side: int, window: int) -> Figures:
    x = torch.randn(a.batch, side, side, a.dim, requires_grad=True)

    def step(layer: nn.Module) -> Callable[[], None]:
        def call() -> None:
            layer(x).sum().backward()
            layer.zero_grad()
            x.grad = None

        return call

    calls = {
        name: step(layer)
        for name, layer in contenders(a.dim, a.heads, window).items()
        if not name.startswith("global") or side <= a.widest
    }
    times = interleave(calls, a.rounds, seconds=90)
    return {name: (times[name].cpu, peak_memory(call)) for name, call in calls.items()}


def table(a: argparse.Namespace, figures: dict[tuple[int, int], Figures]) -> Table:
    out = Table(
        title=f"one layer, forward and backward: {a.dim} channels, {a.heads} heads, "
        f"batch {a.batch}, fp32, {a.threads} thread(s)"
    )
    for column in ("map", "k", "layer", "ms", "/ QnA", "peak MB", "/ QnA"):
        out.add_column(column, justify="left" if column == "layer" else "right")
    for (side, window), row in figures.items():
        seconds, memory = row["QnA"]
        for name, (s, m) in row.items():
            out.add_row(
                str(side), str(window), name, f"{s * 1e3:.1f}", f"{s / seconds:.2f}x",
                f"{m / 2**20:.1f}", f"{m / memory:.2f}x", end_section=name == [*row][-1],
            )  # fmt: skip
    return out


def draw(a: argparse.Namespace, figures: dict[tuple[int, int], Figures]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    names = [*dict.fromkeys(name for row in figures.values() for name in row)]
    last, middle = a.windows[-1], a.sides[len(a.sides) // 2]
    kinds = [
        (axes[0], "side of the map", a.sides, lambda side: (side, last), f"k = {last}"),
        (axes[1], "k", a.windows, lambda k: (middle, k), f"map of {middle} x {middle}"),
    ]
    for (left, right), label, values, key, note in kinds:
        for i, name in enumerate(names):
            points = [(v, *figures[key(v)][name]) for v in values if name in figures[key(v)]]
            if not points:
                continue
            x, seconds, memory = zip(*points, strict=True)
            style = {
                "color": COLOURS[i % 8], "marker": "os^vDPX*"[i % 8], "label": name,
                "linewidth": 2.5 if name == "QnA" else 1.2,
            }  # fmt: skip
            left.plot(x, [s * 1e3 for s in seconds], **style)
            right.plot(x, [m / 2**20 for m in memory], **style)
        for axis, what in ((left, "ms"), (right, "peak memory, MB")):
            axis.set(title=f"{what}, {note}", xlabel=label, yscale="log")
            axis.set_xticks([*values], [str(v) for v in values])
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
            axis.grid(alpha=0.3, which="both")
            axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right", frameon=False)
    figure.suptitle(f"A training step of one layer, {a.dim} channels, {a.heads} heads")
    figure.savefig(a.out, dpi=130)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--sides", type=int, nargs="+", default=[28, 56, 112])
    parse.add_argument("--windows", type=int, nargs="+", default=[3, 5, 7])
    parse.add_argument("--dim", type=int, default=64)
    parse.add_argument("--heads", type=int, default=8)
    parse.add_argument("--batch", type=int, default=1)
    parse.add_argument("--rounds", type=int, default=7)
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--widest", type=int, default=56, help="map for global attention, at most")
    parse.add_argument("--out", default="qna_layer.png")
    a = parse.parse_args()
    torch.set_num_threads(a.threads)
    console, figures = Console(), {}
    middle = a.sides[len(a.sides) // 2]
    for side, window in [(s, k) for s in a.sides for k in a.windows]:
        if side == middle or window == a.windows[-1] or window == a.windows[0]:
            with console.status(f"{side} x {side}, k = {window}"):
                figures[side, window] = measure(a, side, window)
    console.print(table(a, figures))
    draw(a, figures)
    console.print(f"drawn: {a.out}")


if __name__ == "__main__":
    main()
