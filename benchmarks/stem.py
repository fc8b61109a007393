"""What does SASA's attention stem cost, in one piece and in plain PyTorch?

    python benchmarks/stem.py [--size 224] [--batch 4]

Forward at the image's resolution, with backward, and in eval mode with norm and maximum. One
thread, fp32, CPU time, best of interleaved rounds.
"""

import argparse
from functools import partial

import torch
from timing import interleaved

from saccade.layers.sasa_stem import AttentionStem
from saccade.ops import native
from saccade.ops.sasa_block import attend

plain = partial(attend, backend="composed")


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--size", type=int, default=224)
    parse.add_argument("--batch", type=int, default=4)
    parse.add_argument("--rounds", type=int, default=4)
    a = parse.parse_args()
    torch.set_num_threads(1)
    print(native.where())
    stem = AttentionStem(3).eval()
    x = torch.randn(a.batch, 3, a.size, a.size)

    def step(form):
        y = form(x, *stem.letters(x), stem.row, stem.col, stem.heads, False)
        return torch.autograd.grad(y, list(stem.parameters())[:-2], torch.ones_like(y))

    def whole(form):
        y = form(x, *stem.letters(x), stem.row, stem.col, stem.heads, False)
        return torch.nn.functional.max_pool2d(stem.norm(y), stem.side, ceil_mode=True)

    rows = {
        "with backward": interleaved(a.rounds, ours=lambda: step(attend), plain=lambda: step(plain))
    }
    with torch.no_grad():
        assert torch.allclose(stem(x), whole(plain), atol=1e-4)
        arguments = x, *stem.letters(x), stem.row, stem.col, stem.heads, False
        rows["forward"] = interleaved(
            a.rounds, ours=lambda: attend(*arguments), plain=lambda: plain(*arguments)
        )
        rows["norm and maximum too"] = interleaved(
            a.rounds, ours=lambda: stem(x), plain=lambda: whole(plain)
        )
    for name, t in rows.items():
        print(f"{name:22s} {t['ours'] * 1e3:8.2f} ms  {t['plain'] / t['ours']:6.2f}x")


if __name__ == "__main__":
    main()
