"""What does a training step pay for the norms in RP-CPE's branches?

    python benchmarks/branch_norm.py [--model linglo_b0] [--size 224] [--batch 8]

Forward, backward and AdamW of the same model with and without `branch_norm`; one thread, CPU time
of interleaved rounds, the best.
"""

import argparse

import timm
import torch
from timing import interleaved
from torch.nn import functional as F

import saccade  # noqa: F401  (registers its models)
from saccade.ops import native


def step_of(model: torch.nn.Module, image: torch.Tensor, label: torch.Tensor):
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(image), label).backward()
        optimiser.step()

    return step


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--model", default="linglo_b0")
    parse.add_argument("--size", type=int, default=224)
    parse.add_argument("--batch", type=int, default=8)
    parse.add_argument("--rounds", type=int, default=10)
    a = parse.parse_args()
    torch.set_num_threads(1)
    image, label = torch.randn(a.batch, 3, a.size, a.size), torch.randint(0, 1000, (a.batch,))
    steps = {}
    for name, norm in (("without", False), ("with", True)):
        model = timm.create_model(a.model, drop_path_rate=0.0, branch_norm=norm).train()
        steps[name] = step_of(model, image, label)
    times = interleaved(a.rounds, **steps)
    print(native.where())
    print(
        f"{a.model}, batch {a.batch} at {a.size}: {times['without'] * 1e3:.0f} ms without norms, "
        f"{times['with'] * 1e3:.0f} ms with, {times['with'] / times['without']:.2f}x"
    )


if __name__ == "__main__":
    main()
