"""What does a layer of learned queries cost beside other ways to look around?

    python benchmarks/qna_layer.py [--sizes 14 28 56] [--windows 3 7] [--dim 64] [--train]

QnA, SASA, window attention, a depth-wise convolution between pointwise ones, and global attention,
all from `dim` to `dim` channels over the same map: time and peak memory as ratios to QnA, in one
run. The paper's claim: up to 10 times less memory and 5 times faster than existing local attention;
"unfold" is that attention (SASA's equation with its windows copied out), as it is usually written.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from saccade import bench

PEERS = ("convolved", "sasa", "unfold", "window", "conv", "global")


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--sizes", type=int, nargs="+", default=[14, 28, 56])
    parse.add_argument("--windows", type=int, nargs="+", default=[3, 7])
    parse.add_argument("--dim", type=int, default=64)
    parse.add_argument("--heads", type=int, default=8)
    parse.add_argument("--batch", type=int, default=4)
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--train", action="store_true", help="forward and backward")
    parse.add_argument("--out", type=Path, default=Path("qna_layer.png"), help="one a window")
    a = parse.parse_args()
    torch.set_num_threads(a.threads)
    console = Console()
    kind = "forward and backward" if a.train else "forward"
    for window in a.windows:
        runs = {}
        for size in a.sizes:
            shape = bench.Shape(a.batch, size, size, a.dim, a.heads)
            peers = bench.operators.peers(
                "qna", PEERS, shape, layer=True, window=window, train=a.train
            )
            runs[size] = bench.compare(peers, train=a.train, rounds=8, seconds=20)
            console.print(f"[bold]{kind}, {shape}, window {window}[/]", bench.table(runs[size]))
            console.print(*bench.notes(runs[size]), sep="\n", highlight=False)
        out = a.out.with_stem(f"{a.out.stem}_k{window}")
        bench.draw_over(runs, out, f"a layer's {kind}, window {window}", "map side, pixels")
        console.print(f"drawn: {out}")


if __name__ == "__main__":
    main()
