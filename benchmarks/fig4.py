"""LinGlo's Fig. 4 on this machine: key-only against dot-product attention over input sizes.

    python benchmarks/fig4.py [--sizes 224 448 896] [--batch 1] [--out fig4.png]

One network (LinGlo-b0), three mixers: key-only, dot-product through the fused kernel, and
dot-product that holds its N x N maps (tried only where these fit). The fused positions are used in
all three, so that attention is the only difference.
"""

import argparse

import torch
from rich.console import Console
from rich.table import Table

import saccade
from saccade.bench import interleave, peak_memory

MIXERS = {"key-only": "key-only", "dot, fused": "dot", "dot, naive": "dot-naive"}
COLOURS = {"key-only": "#0072B2", "dot, fused": "#D55E00", "dot, naive": "#009E73"}
MARKS = {"key-only": "o", "dot, fused": "s", "dot, naive": "^"}


def measure(size: int, batch: int, rounds: int, limit: float) -> dict[str, tuple[float, int]]:
    """Seconds (best) and peak bytes of each mixer at one size."""
    image = torch.randn(batch, 3, size, size)
    maps = batch * (size // 4) ** 4 * 4  # bytes of stage 1's N x N map, one head
    calls = {}
    for label, mixer in MIXERS.items():
        if mixer == "dot-naive" and 2 * maps > limit * 2**30:
            continue
        model = saccade.build("linglo_b0", mixer=mixer).eval().fuse()
        calls[label] = lambda model=model: model(image)
    with torch.inference_mode():
        times = interleave(calls, rounds, seconds=60)
        return {label: (times[label].best, peak_memory(call)) for label, call in calls.items()}


def table(figures: dict[int, dict[str, tuple[float, int]]], batch: int) -> Table:
    out = Table(title=f"LinGlo-b0, {torch.get_num_threads()} thread(s), batch {batch}, fp32")
    for column in ("size", "attention", "ms", "/ key-only", "peak MB", "/ key-only"):
        out.add_column(column, justify="left" if column == "attention" else "right")
    for size, row in figures.items():
        seconds, memory = row["key-only"]
        for label, (s, m) in row.items():
            cells = (
                f"{s * 1e3:.1f}",
                f"{s / seconds:.1f}x",
                f"{m / 2**20:.1f}",
                f"{m / memory:.1f}x",
            )
            out.add_row(str(size), label, *cells, end_section=label == [*row][-1])
    return out


def draw(figures: dict[int, dict[str, tuple[float, int]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for label in MIXERS:
        rows = [(size, *row[label]) for size, row in figures.items() if label in row]
        sizes, seconds, memory = zip(*rows, strict=True)
        style = {"color": COLOURS[label], "marker": MARKS[label], "label": label}
        left.plot(sizes, [s * 1e3 for s in seconds], **style)
        right.plot(sizes, [m / 2**20 for m in memory], **style)
    for axis, title in ((left, "latency, ms"), (right, "peak memory, MB")):
        axis.set(title=title, xlabel="image side, pixels", yscale="log")
        axis.set_xticks([*figures], [str(size) for size in figures])
        axis.grid(alpha=0.3, which="both")
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.suptitle("LinGlo-b0 with key-only and with dot-product attention")
    figure.savefig(path, dpi=150)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--sizes", type=int, nargs="+", default=[224, 320, 448, 640, 896])
    parse.add_argument("--batch", type=int, default=1)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--limit", type=float, default=8.0, help="GiB that naive attention may take")
    parse.add_argument("--out", default="fig4.png")
    a = parse.parse_args()
    torch.set_num_threads(a.threads)
    console, figures = Console(), {}
    for size in a.sizes:
        with console.status(f"{size} pixels"):
            figures[size] = measure(size, a.batch, a.rounds, a.limit)
    console.print(table(figures, a.batch))
    draw(figures, a.out)
    console.print(f"drawn: {a.out}")


if __name__ == "__main__":
    main()
