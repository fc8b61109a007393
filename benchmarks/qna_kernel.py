"""How much faster is the layer of learned queries with the fused kernel than by convolutions?

    python benchmarks/qna_kernel.py              the two shapes with bars of their own
    python benchmarks/qna_kernel.py --all        every window, query count, stride: never below 1x
    python benchmarks/qna_kernel.py --compiled   both through torch.compile (with --all: slow)
    python benchmarks/qna_kernel.py --operator   the aggregation alone, without the projections

The other side is the same layer in its depth-wise form (`backend="convolved"`, as its authors
compute it). One thread, fp32, CPU time, best of interleaved rounds.
"""

import argparse
from functools import partial

import torch
from timing import against, interleaved, training

from saccade.layers.qna import LearnedQueryAttention
from saccade.ops import native, qna

BARS = {  # batch, side, dim, heads, window, queries, stride: forward, with backward
    (8, 56, 64, 8, 3, 2, 1): (2.2, 2.6),
    (8, 28, 128, 16, 7, 1, 1): (1.4, 2.2),
}
GRID = [
    (4, 28, 64, 8, k, L, stride)
    for k in (3, 4, 5, 6, 7) for L in (1, 2, 3, 4) for stride in (1, 2)
]  # fmt: skip


def layers(dim, heads, k, L, stride, compiled):
    """The layer in both forms, with the same parameters; first ours, then the convolutions."""
    pair = [
        LearnedQueryAttention(dim, heads, k, stride, L, padding=k // 2, backend=backend)
        for backend in ("auto", "convolved")
    ]
    torch.nn.init.normal_(pair[0].rpe, std=0.3)
    torch.nn.init.normal_(pair[0].scale, std=0.3)
    pair[1].load_state_dict(pair[0].state_dict())
    if compiled:
        torch._dynamo.reset()
        return [torch.compile(layer) for layer in pair]
    return pair


def operators(dim, heads, k, L, stride):
    """The aggregation alone, in both forms, on the scores and values of a layer."""
    layer = layers(dim, heads, k, L, stride, compiled=False)[0]

    def form(aggregate):
        return lambda s, v, rpe, ws: aggregate(s, v, rpe, ws, stride, layer.padding)

    def tensors(x):
        with torch.no_grad():
            parts = layer.scores(x), layer.values(x), layer.rpe, layer.scale
            return [t.clone() for t in parts]

    return [form(qna.aggregate), form(partial(qna.aggregate, backend="convolved"))], tensors


def measure(shape, rounds, compiled=False, operator=False):
    B, side, dim, heads, k, L, stride = shape
    x = torch.randn(B, side, side, dim)
    if operator:
        (ours, theirs), tensors_of = operators(dim, heads, k, L, stride)
        pairs = [(ours, tensors_of(x)), (theirs, tensors_of(x))]
    else:
        ours, theirs = layers(dim, heads, k, L, stride, compiled)
        pairs = [(ours, [x, *ours.parameters()]), (theirs, [x, *theirs.parameters()])]

    def call(f, tensors):
        return f(*tensors) if operator else f(tensors[0])

    def step(f, tensors, g):
        if operator:
            return training(f, tensors, g)
        leaf = x.clone().requires_grad_()
        expected = [leaf, *tensors[1:]]
        return lambda: torch.autograd.grad(f(leaf), expected, g, allow_unused=True)

    with torch.no_grad():
        y, want = (call(*pair) for pair in pairs)
        assert torch.allclose(y, want, atol=1e-4), (y - want).abs().max()
        f = interleaved(rounds, ours=lambda: call(*pairs[0]), theirs=lambda: call(*pairs[1]))
    g = torch.randn_like(y)
    fb = interleaved(rounds, ours=step(*pairs[0], g), theirs=step(*pairs[1], g))
    return f, fb


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--all", action="store_true")
    parse.add_argument("--compiled", action="store_true")
    parse.add_argument("--operator", action="store_true")
    parse.add_argument("--rounds", type=int, default=7)
    a = parse.parse_args()
    torch.set_num_threads(1)
    print(native.where(), "| compiled" if a.compiled else "| eager")
    lowest = float("inf")
    for shape, bars in (dict.fromkeys(GRID, (1.0, 1.0)) if a.all else BARS).items():
        times = measure(shape, a.rounds, a.compiled, a.operator)
        B, side, dim, heads, k, L, stride = shape
        line = f"({B}, {side}x{side}, {dim}, h{heads}) k{k} L{L} s{stride}:"
        for name, t, bar in zip(("forward", "with backward"), times, bars, strict=True):
            ratio = t["theirs"] / t["ours"]
            lowest = min(lowest, ratio)
            line += f"  {name} {t['ours'] * 1e3:6.2f} ms {against(ratio, bar)}"
        print(line, flush=True)
    print(f"lowest ratio {lowest:.2f}x")


if __name__ == "__main__":
    main()
