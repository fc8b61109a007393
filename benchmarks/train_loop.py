"""Is our training loop slower than a plain loop of timm's parts, on the same model and images?

    python benchmarks/train_loop.py FOLDER [--model linglo_nano] [--size 64] [--rounds 15]

Both read the same ImageFolder with one worker, crop and flip, run the same model with AdamW and
clipping. Turns of `--steps` steps come in pairs, one of each loop, and who begins changes from pair
to pair; what counts is the median of the pairs' ratios, with the interval in which the true median
lies at 95% (the sign test's), so that a slow minute of the machine strikes both. Ours does more
between steps: it checks the loss, tells a watcher and can be stopped at any step.
"""

import argparse
import itertools
import math
import statistics
import tempfile
import time

import timm
import torch
from timm.data import create_loader
from timm.optim import create_optimizer_v2
from torchvision.datasets import ImageFolder

import saccade  # noqa: F401  (registers its models)
from saccade.data.datasets import find
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.engine.run import Run
from saccade.engine.train import Training
from saccade.engine.watch import Silent
from saccade.recipes import book
from saccade.recipes.augment import Augment
from saccade.recipes.recipe import change


def plain(folder, name, size, batch):
    """Steps of a loop such as one writes with timm."""
    images = ImageFolder(f"{folder}/train")
    net = timm.create_model(name, num_classes=len(images.classes))
    optim = create_optimizer_v2(net, "adamw", lr=1e-3, weight_decay=0.05)
    loader = create_loader(
        images, (3, size, size), batch, is_training=True, no_aug=False, scale=(0.35, 1.0),
        interpolation="bilinear", color_jitter=None, num_workers=1, use_prefetcher=False,
        device=torch.device("cpu"),
    )  # fmt: skip
    net.train()
    while True:
        for image, label in loader:
            loss = torch.nn.functional.cross_entropy(net(image), label)
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optim.step()
            yield


def ours(folder, name, size, batch, out):
    recipe = change(
        book.find("scratch"), model__name=name, task__smoothing=0.0, loop__batch=batch,
        augment=Augment(size=size, scale=(0.35, 1.0), interpolation="bilinear"),
        schedule__epochs=1000,
    )  # fmt: skip
    splits = find(folder, recipe.data)
    run = Run.create(out, "scratch", recipe, folder, splits.classes)
    task = make.task(recipe, run.classes)
    training = Training(run, splits, task, Group(), Silent())
    for epoch in itertools.count():
        for parts in training.train.epoch(epoch):
            training.advance(parts)
            yield


def interval(values, sure=0.95):
    """Where the median of what was drawn from lies: by how many draws fall to one side of it."""
    values, n = sorted(values), len(values)
    below, out = 0.0, 0
    while out < (n - 1) // 2 and 2 * (below + math.comb(n, out) / 2**n) <= 1 - sure:
        below += math.comb(n, out) / 2**n
        out += 1
    return values[max(out - 1, 0)], values[n - max(out, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--model", default="linglo_nano")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        loops = {
            "timm's parts": plain(options.folder, options.model, options.size, options.batch),
            "saccade": ours(options.folder, options.model, options.size, options.batch, out),
        }
        rates = {name: [] for name in loops}
        for turn in range(options.rounds + 1):
            for name in sorted(loops, reverse=bool(turn % 2)):
                began = time.monotonic()
                for _ in range(options.steps):
                    next(loops[name])
                lasted = time.monotonic() - began
                if turn:  # the first turn warms up
                    rates[name].append(options.steps * options.batch / lasted)
        for name, speed in rates.items():
            print(
                f"{name:14} best {max(speed):7.1f}  median {statistics.median(speed):7.1f} images/s"
            )
        pairs = [a / b for a, b in zip(rates["saccade"], rates["timm's parts"], strict=True)]
        low, high = interval(pairs)
        print(
            f"saccade / timm's parts: {statistics.median(pairs):.3f} ({low:.3f} to {high:.3f}) "
            f"over {len(pairs)} pairs ({options.model}, {options.size} px)"
        )


if __name__ == "__main__":
    main()
