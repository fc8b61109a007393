"""What does a feed-forward gain whose wide map never leaves the cache?

    python benchmarks/feed.py [--threads 2]

The shapes are those of LinGlo-b0 (with RP-CPE, as one 3x3) and QnA-T (without) at 224 pixels,
batch 4, and LinGlo-b0's first at 1024; the other side is the same in plain PyTorch. fp32; CPU time
of interleaved rounds with one thread, else wall time of one side after the other; the best.
"""

import argparse

import torch
from timing import interleaved, training, wall

from saccade.ops import native
from saccade.ops.feed import FeedForwardWeights, feed_forward

SHAPES = [  # batch, side, dim, hidden, with a 3x3
    (4, 56, 32, 256, True), (4, 28, 64, 512, True), (4, 14, 160, 640, True),
    (4, 7, 256, 1024, True), (1, 256, 32, 256, True),
    (4, 56, 64, 256, False), (4, 28, 128, 512, False), (4, 14, 256, 1024, False),
    (4, 7, 512, 2048, False),
]  # fmt: skip


def tensors_of(B, side, C, J, taps):
    return [
        torch.randn(B, side, side, C), torch.randn(J, C) / C**0.5, torch.randn(J) / 10,
        torch.randn(J, 1, 3, 3) / 3 if taps else None, torch.randn(J) / 10 if taps else None,
        torch.randn(C, J) / J**0.5, torch.randn(C),
    ]  # fmt: skip


def ours(x, *w):
    return feed_forward(x, FeedForwardWeights(*w))


def plain(x, *w):
    return feed_forward(x, FeedForwardWeights(*w), backend="composed")


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--rounds", type=int, default=8)
    a = parse.parse_args()
    torch.set_num_threads(a.threads)
    print(native.where(), f"| threads {a.threads}")
    for B, side, C, J, taps in SHAPES:
        tensors, g = tensors_of(B, side, C, J, taps), torch.randn(B, side, side, C)

        assert torch.allclose(ours(*tensors), plain(*tensors), atol=1e-4)
        calls = {
            "forward": {
                "ours": lambda t=tensors: ours(*t),
                "plain": lambda t=tensors: plain(*t),
            },
            "with backward": {
                "ours": training(ours, tensors, g),
                "plain": training(plain, tensors, g),
            },
        }
        line = f"({B}, {side}x{side}, {C} -> {J}{', 3x3' if taps else ''}):"
        for products, (name, pair) in zip((1, 3), calls.items(), strict=True):
            if a.threads == 1:
                times = interleaved(a.rounds, **pair)
            else:
                times = {who: wall(a.rounds, f) for who, f in pair.items()}
            speed = 4 * products * B * side**2 * C * J / times["ours"] / 1e9
            line += f"  {name} {times['ours'] * 1e3:6.2f} ms {times['plain'] / times['ours']:.2f}x"
            line += f" ({speed:.0f} GFLOP/s in products)"
        print(line, flush=True)


if __name__ == "__main__":
    main()
