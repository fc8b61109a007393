"""How near does key-only attention come to the one product that it cannot do without?

    python benchmarks/keyonly.py          (8, 3136, 64), with bars
    python benchmarks/keyonly.py --all    every (N, D) of LinGlo b0-b2 at 224, 512 and 1024 pixels
    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 python benchmarks/keyonly.py    memory reused

"four" is the equation token by token (K, V, U1, U2: four products), "one" a single product of all
tokens with a D x D matrix. One thread, fp32, CPU time, best of interleaved rounds.
"""

import argparse
import os

import torch
from timing import against, interleaved

from saccade.layers.linglo import KeyOnlyAttention
from saccade.ops.linglo import cheapest

WIDTHS = {32: 1, 64: 1, 128: 2, 160: 5, 256: 8, 320: 5, 512: 8}  # D: heads
STAGES = {  # stride: widths of b0, and of b1 and b2
    4: (32, 64),
    8: (64, 128),
    16: (160, 320),
    32: (256, 512),
}


def step(layer, x, g):
    """Forward and backward, of the tokens and of all parameters."""
    expected = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), expected, g)


def measure(B, N, D, heads, rounds):
    """CPU seconds of the form chosen here, of four products and of one: forward, with backward."""
    ours, four = (KeyOnlyAttention(D, heads, form) for form in ("auto", "tokenwise"))
    four.load_state_dict(ours.state_dict())
    one = torch.nn.Linear(D, D)
    x, g = torch.randn(B, N, D), torch.randn(B, N, D)
    peers = {"ours": ours, "four": four, "one": one}
    with torch.no_grad():
        assert torch.allclose(ours(x), four(x), atol=1e-4)
        calls = {name: lambda layer=layer: layer(x) for name, layer in peers.items()}
        f = interleaved(rounds, **calls)
    leaf = x.clone().requires_grad_()
    fb = interleaved(rounds, **{name: step(layer, leaf, g) for name, layer in peers.items()})
    return f, fb


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--all", action="store_true")
    parse.add_argument("--batch", type=int, default=8)
    parse.add_argument("--rounds", type=int, default=10)
    a = parse.parse_args()
    torch.set_num_threads(1)
    print("memory reused" if "MALLOC_MMAP_MAX_" in os.environ else "memory as malloc gives it")
    shapes = [(3136, 64)]
    if a.all:
        measured = {
            ((size // stride) ** 2, D)
            for size in (224, 512, 1024) for stride, widths in STAGES.items() for D in widths
        }  # fmt: skip
        shapes = sorted(measured)
    for N, D in shapes:
        B = max(1, min(a.batch, 2**24 // (N * D)))  # the largest maps one by one
        bars = ((4, 0.85), (4, 0.85)) if (N, D) == (3136, 64) else ((1, 0), (1, 0))
        form = cheapest(B, N, D)
        print(f"({B}, {N}, {D}) {form}{': four products it is' * (form == 'tokenwise')}")
        if form == "tokenwise":
            continue
        times = measure(B, N, D, WIDTHS[D], a.rounds)
        for name, t, (four, one) in zip(("forward", "with backward"), times, bars, strict=True):
            print(
                f"  {name:13s} {t['ours'] * 1e3:8.2f} ms  to four products "
                f"{against(t['four'] / t['ours'], four)}  of one product's speed "
                f"{against(t['one'] / t['ours'], one)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
