"""How many images a second does the loader give, and where does the time go?

    python benchmarks/loader.py FOLDER [--size 128] [--rand rand-m9-n2-mstd0.5] [--workers 0 1 2]

Against torchvision's ImageFolder in a plain DataLoader and against timm's loader, with the same
crop, flip and RandAugment, on the same folder and in turn: ratios of images per second, best of
several rounds. Reproducing each image by its position costs us three seeds an image; that is in.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from timm.data import create_dataset, create_loader
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from saccade.data import augment, datasets, reader
from saccade.data.loader import Loader
from saccade.recipes.augment import Augment
from saccade.recipes.recipe import Data

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def ours(folder: str, chosen: Augment, batch: int, workers: int) -> Iterator[object]:
    images = datasets.find(folder, Data()).train
    loader = Loader(images, augment.train(chosen, MEAN, STD), batch=batch, workers=workers)
    n = 0
    while True:
        yield from loader.epoch(n)
        n += 1


def torchvision(folder: str, chosen: Augment, batch: int, workers: int) -> Iterator[object]:
    steps = [
        T.RandomResizedCrop(chosen.size, interpolation=T.InterpolationMode.BICUBIC),
        T.RandomHorizontalFlip(),
        *([augment._rand(chosen, MEAN)] if chosen.rand else []),
        T.ToTensor(),
        T.Normalize(MEAN, STD),
    ]
    images = ImageFolder(f"{folder}/train", T.Compose(steps))
    loader = DataLoader(
        images, batch, shuffle=True, drop_last=True, num_workers=workers,
        persistent_workers=workers > 0,
    )  # fmt: skip
    while True:
        yield from loader


def timm(folder: str, chosen: Augment, batch: int, workers: int) -> Iterator[object]:
    loader = create_loader(
        create_dataset("", folder, split="train"), (3, chosen.size, chosen.size), batch,
        is_training=True, use_prefetcher=False, num_workers=workers, interpolation="bicubic",
        color_jitter=None, auto_augment=chosen.rand or None, device=torch.device("cpu"),
        persistent_workers=workers > 0,
    )  # fmt: skip
    while True:
        yield from loader


def rates(streams: dict[str, Iterator[object]], batch: int, steps: int, rounds: int) -> dict:
    """Images a second of each, best of the rounds; all take turns."""
    best = dict.fromkeys(streams, 0.0)
    for _ in range(rounds):
        for name, stream in streams.items():
            next(stream)  # what was read ahead while others had their turn comes first
            for _ in range(4):
                next(stream)
            start = time.perf_counter()
            for _ in range(steps):
                next(stream)
            best[name] = max(best[name], steps * batch / (time.perf_counter() - start))
    return best


def shares(folder: str, chosen: Augment, count: int = 400) -> dict[str, float]:
    """CPU microseconds an image of each stage, in one process."""
    images = datasets.find(folder, Data()).train
    transform = augment.train(chosen, MEAN, STD)
    order = reader.chance(0).permutation(len(images))[:count].tolist()
    opened = [images.read(i) for i in order]
    tensors = [transform(*pair)[0] for pair in opened]

    def timed(f: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            f()
            best = min(best, time.process_time() - start)
        return best / count * 1e6

    return {
        "decode": timed(lambda: [images.read(i) for i in order]),
        "transform": timed(lambda: [transform(*pair) for pair in opened]),
        "seed": timed(lambda: [reader._seed(1, 2, 3, i) for i in order]),
        "collate": timed(lambda: [reader._side_by_side(tensors[k : k + 50]) for k in
                                  range(0, count, 50)]),
    }  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("folder")
    parse.add_argument("--size", type=int, default=128)
    parse.add_argument("--rand", default="")
    parse.add_argument("--batch", type=int, default=64)
    parse.add_argument("--steps", type=int, default=10)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    a = parse.parse_args()
    torch.set_num_threads(1)
    chosen = Augment(size=a.size, rand=a.rand)
    console = Console()

    spent = shares(a.folder, chosen)
    whole = sum(spent.values())
    parts = ", ".join(f"{name} {us:.0f} us ({us / whole:.0%})" for name, us in spent.items())
    console.print(f"an image at {a.size} px, {a.rand or 'crop and flip'}: {parts}")

    table = Table("workers", "saccade", "torchvision", "timm", "/ torchvision", "/ timm")
    for workers in a.workers:
        streams = {f.__name__: f(a.folder, chosen, a.batch, workers)
                   for f in (ours, torchvision, timm)}  # fmt: skip
        got = rates(streams, a.batch, a.steps, a.rounds)
        table.add_row(
            str(workers),
            *(f"{rate:.0f}/s" for rate in got.values()),
            f"{got['ours'] / got['torchvision']:.2f}x",
            f"{got['ours'] / got['timm']:.2f}x",
        )
    console.print(table)


if __name__ == "__main__":
    main()
