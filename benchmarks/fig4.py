"""LinGlo's Fig. 4 on this machine: key-only against dot-product attention over input sizes.

    python benchmarks/fig4.py [--sizes 224 448 896] [--batch 1] [--out fig4.png]

One network (LinGlo-b0), three mixers: key-only, dot-product through the fused kernel, and
dot-product that holds its N x N maps (left out where these do not fit). The fused positions are
used in all three, so that attention is the only difference.
"""

import argparse

import torch
from rich.console import Console

import saccade
from saccade import bench

MIXERS = {"key-only": "key-only", "dot, fused": "dot", "dot, naive": "dot-naive"}


def peers(size: int, batch: int) -> dict[str, bench.Peer]:
    image = torch.randn(batch, 3, size, size)
    maps = batch * (size // 4) ** 4 * 4  # bytes of stage 1's N x N map, one head
    return {
        label: bench.Peer(
            saccade.build("linglo_b0", mixer=mixer).eval().fuse(), (image,),
            needs=3 * maps if mixer == "dot-naive" else 0,
        )
        for label, mixer in MIXERS.items()
    }  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--sizes", type=int, nargs="+", default=[224, 320, 448, 640, 896])
    parse.add_argument("--batch", type=int, default=1)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--out", default="fig4.png")
    a = parse.parse_args()
    torch.set_num_threads(a.threads)
    console, runs = Console(), {}
    for size in a.sizes:
        with console.status(f"{size} pixels"):
            runs[size] = bench.compare(peers(size, a.batch), rounds=a.rounds)
        console.print(f"[bold]{size} x {size}[/]", bench.table(runs[size]), sep="\n")
        console.print(*bench.notes(runs[size]), sep="\n", highlight=False)
    bench.draw_over(runs, a.out, "LinGlo-b0 with key-only and with dot-product attention")
    console.print(f"drawn: {a.out}")


if __name__ == "__main__":
    main()
