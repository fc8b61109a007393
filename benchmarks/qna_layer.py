"""What does a layer of learned queries cost beside other ways to look around?

    python benchmarks/qna_layer.py [--sizes 14 28 56] [--windows 3 7] [--dim 64] [--train]

QnA, SASA, window attention, a depth-wise convolution between pointwise ones, and global attention,
all from `dim` to `dim` channels over the same map: time and peak memory as ratios to QnA, in one
run. The paper's claim: up to 10 times less memory and 5 times faster than existing local attention;
"unfold" is that attention (SASA's equation with its windows copied out), as it is usually written.
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from torch import nn

from saccade.bench import Row, compare, table
from saccade.layers.dot import DotProductAttention
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.window import WindowAttention


def layers(dim: int, heads: int, window: int) -> dict[str, tuple[nn.Module, bool]]:
    """Each layer, and whether it reads NCHW instead of B H W C."""
    convolution = nn.Sequential(
        nn.Conv2d(dim, dim, 1),
        nn.Conv2d(dim, dim, window, padding=window // 2, groups=dim),
        nn.Conv2d(dim, dim, 1),
    )
    return {
        "qna": (LearnedQueryAttention(dim, heads, window), False),
        "sasa": (StandAloneAttention(dim, heads=heads, window=window), True),
        "unfold": (StandAloneAttention(dim, heads=heads, window=window, form="unfolded"), True),
        "window attention": (WindowAttention(dim, heads, max(window, 7)), False),
        "depth-wise conv": (convolution, True),
        "global attention": (DotProductAttention(dim, heads), False),
    }


def call(layer: nn.Module, x: torch.Tensor, train: bool) -> Callable[[], None]:
    def forward() -> None:
        with torch.inference_mode():
            layer(x)

    def step() -> None:
        layer(x).square().mean().backward()
        layer.zero_grad()

    return step if train else forward


def measure(size: int, window: int, dim: int, heads: int, batch: int, train: bool) -> list[Row]:
    x = torch.randn(batch, size, size, dim)
    calls = {
        name: call(layer, x.permute(0, 3, 1, 2) if nchw else x, train)
        for name, (layer, nchw) in layers(dim, heads, window).items()
    }
    return compare(calls, "qna", rounds=8, seconds=20)


def draw(figures: dict[tuple[int, int], list[Row]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    windows = sorted({window for _, window in figures})
    figure, axes = plt.subplots(
        len(windows), 2, figsize=(9, 3.2 * len(windows)), squeeze=False, layout="constrained"
    )
    colours = ["#000000", "#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7"]
    marks = "osvD^x"
    for row, window in zip(axes, windows, strict=True):
        sizes = [size for size, k in figures if k == window]
        for i, name in enumerate(r.name for r in figures[sizes[0], window]):
            rows = [figures[size, window][i] for size in sizes]
            style = {"color": colours[i], "marker": marks[i], "label": name}
            row[0].plot(sizes, [r.best * 1e3 for r in rows], **style)
            row[1].plot(sizes, [r.peak / 2**20 for r in rows], **style)
        for axis, what in zip(row, ("time, ms", "peak memory, MB"), strict=True):
            axis.set(title=f"k = {window}: {what}", xlabel="map side, pixels", yscale="log")
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.grid(alpha=0.3, which="both")
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--sizes", type=int, nargs="+", default=[14, 28, 56])
    parse.add_argument("--windows", type=int, nargs="+", default=[3, 7])
    parse.add_argument("--dim", type=int, default=64)
    parse.add_argument("--heads", type=int, default=8)
    parse.add_argument("--batch", type=int, default=4)
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--train", action="store_true", help="forward and backward")
    parse.add_argument("--out", default="qna_layer.png")
    a = parse.parse_args()
    torch.set_num_threads(a.threads)
    console, figures = Console(), {}
    kind = "forward + backward" if a.train else "forward"
    for window in a.windows:
        for size in a.sizes:
            rows = measure(size, window, a.dim, a.heads, a.batch, a.train)
            figures[size, window] = rows
            title = f"{kind}, {a.batch} x {size} x {size} x {a.dim}, k = {window}, ratios to qna"
            console.print(table(rows, title))
    draw(figures, a.out)
    console.print(f"drawn: {a.out}")


if __name__ == "__main__":
    main()
