"""How many small pictures a second come out of memory, many at once and one by one?

    python benchmarks/memory_loader.py [cifar10 or a folder of CIFAR-10] [--batch 128]

In this process, on one core, by CPU time: best of several rounds. The same pictures are shifted and
mirrored, then mixed too, then only normalised as an evaluation does; at last one by one, as sets
are read that do not lie in memory.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from saccade.data import augment, datasets
from saccade.data.loader import Loader
from saccade.recipes.augment import Augment, Test
from saccade.recipes.recipe import Data

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHOSEN = Augment(size=32, pad=4, cutout=8, mixup=0.2, interpolation="bilinear")


class OneByOne:
    """A set without `block`."""

    def __init__(self, images: datasets.Images):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, i: int) -> tuple[Any, Any]:
        return self.images.read(i)

    def name(self, i: int) -> str:
        return self.images.name(i)


def rate(loader: Loader, rounds: int, steps: int) -> float:
    """Images a second of CPU time."""

    def timed(epoch: Iterator[object]) -> float:
        start = time.process_time()
        count = sum(1 for _ in islice(epoch, steps))
        return count * loader.batch / (time.process_time() - start)

    return max(timed(loader.epoch(n)) for n in range(rounds))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("data", nargs="?", default="cifar10")
    parse.add_argument("--batch", type=int, default=128)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--steps", type=int, default=60)
    a = parse.parse_args()
    torch.set_num_threads(1)
    images: Any = datasets.find(a.data, Data()).train
    train = augment.train(CHOSEN, MEAN, STD)
    test = augment.test(Test(size=32, crop=1.0, interpolation="bilinear"), MEAN, STD)
    ways: dict[str, tuple[Any, Any, augment.Mix | None]] = {
        "shift, mirror, cutout": (images, train, None),
        "the same and mixup": (images, train, augment.Mix(CHOSEN)),
        "evaluation": (images, test, None),
        "evaluation, one by one": (OneByOne(images), test, None),
        "shift, mirror, cutout, one by one": (OneByOne(images), train, None),
    }
    table = Table("what", "images/s")
    for name, (source, transform, mix) in ways.items():
        loader = Loader(source, transform, batch=a.batch, mix=mix)
        table.add_row(name, f"{rate(loader, a.rounds, a.steps):,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
