"""How much faster is the fused aggregation of QnA than its form of depth-wise convolutions?

    python benchmarks/qna_kernel.py            the two shapes with bars
    python benchmarks/qna_kernel.py --all      every window, query count and stride: never below 1x

One thread, fp32, CPU time, best of interleaved rounds.
"""

import sys

import torch
from timing import against, interleaved, training
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.native.qna import aggregate


def depthwise(s, v, rpe, ws, stride, padding):
    """The authors' form: exponentials, then grouped convolutions of e^s v and e^s."""
    (L, h), d = s.shape[3:], v.shape[-1]
    e = (s - s.amax((1, 2), keepdim=True)).exp()
    numerator = (e[..., None] * v[:, :, :, None]).flatten(3).permute(0, 3, 1, 2)
    bias = rpe.exp()
    weight = bias if ws is None else bias * ws
    weight = weight.flatten(2).permute(2, 0, 1).repeat_interleave(d, 0)[:, None]
    top = F.conv2d(numerator, weight, None, stride, padding, groups=L * h * d)
    below = bias.flatten(2).permute(2, 0, 1)[:, None]
    below = F.conv2d(e.flatten(3).permute(0, 3, 1, 2), below, None, stride, padding, groups=L * h)
    y = top.unflatten(1, (L, h, d)) / below.unflatten(1, (L, h))[:, :, :, None]
    return y.sum(1).permute(0, 3, 4, 1, 2)


def measure(B, side, dim, heads, k, L, stride, rounds):
    d = dim // heads
    s, v = torch.randn(B, side, side, L, heads), torch.randn(B, side, side, heads, d)
    rpe, ws = (torch.randn(k, k, L, heads) * 0.3 for _ in range(2))
    tensors, padding = (s, v, rpe, ws), k // 2

    def ours(*t):
        return aggregate(*t, stride, padding)

    def theirs(*t):
        return depthwise(*t, stride, padding)

    y = ours(*tensors)
    assert torch.allclose(y, theirs(*tensors), atol=1e-4)
    g = torch.randn_like(y)
    f = interleaved(rounds, ours=lambda: ours(*tensors), theirs=lambda: theirs(*tensors))
    fb = interleaved(rounds, ours=training(ours, tensors, g), theirs=training(theirs, tensors, g))
    return f, fb


def main():
    torch.set_num_threads(1)
    print(native.where())
    bars = {(8, 56, 64, 8, 3, 2, 1): (2.2, 2.6), (8, 28, 128, 16, 7, 1, 1): (1.4, 2.2)}
    if "--all" in sys.argv:
        shapes = [(4, 28, 64, 8, k, L, s) for k in (3, 5, 7) for L in (1, 2, 4) for s in (1, 2)]
        bars |= dict.fromkeys(shapes, (1.0, 1.0))
    for shape, (bar, bar_both) in bars.items():
        f, fb = measure(*shape, rounds=5)
        B, side, dim, heads, k, L, stride = shape
        print(
            f"({B}, {side}x{side}, {dim}, h{heads}) k{k} L{L} s{stride}: "
            f"forward {f['ours'] * 1e3:6.2f} ms {against(f['theirs'] / f['ours'], bar)}, "
            f"with backward {fb['ours'] * 1e3:6.2f} ms "
            f"{against(fb['theirs'] / fb['ours'], bar_both)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
