"""Does a training run need more memory the longer it lasts?

    python benchmarks/long_run.py [--steps 20000] [--warmup 4000] [--trace]

A small model learns small pictures in this process, with all that a run does between steps: lines,
evaluations, checkpoints and, with `--report`, its page. The resident memory is read every 20 steps;
what counts is the slope of a straight line through what was read after the warm-up, in kB a step.
`--trace` also counts python's objects and allocations, which says whether it is python that grows.
"""

import argparse
import collections
import gc
import os
import tempfile
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saccade.engine import session
from saccade.engine.watch import Silent
from saccade.recipes import book
from saccade.recipes.augment import Augment, Test
from saccade.recipes.recipe import Loop, Model, Schedule, change
from saccade.report.write import Reporter

EVERY = 20  # steps between two readings
SMALL = {"depths": (1, 1, 1, 1), "widths": (8, 8, 8, 8), "heads": (1, 1, 1, 1)}
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--warmup", type=int, default=4_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        data = pictures(Path(place, "data"))
        epochs = options.steps // 100
        recipe = change(
            book.find("quick"),
            model=Model(name="linglo_nano", drop_path=0.0, options=SMALL),
            data__workers=options.workers,
            augment=Augment(size=32, scale=(0.8, 1.0)),
            test=Test(size=32, crop=1.0),
            schedule=Schedule(epochs=epochs, warmup=1),
            loop=Loop(batch=2, evaluate_every=5),
        )
        memory = Memory(options.warmup, options.trace)
        report = Reporter() if options.report else None
        session.train(
            recipe,
            str(data),
            Path(place, "run"),
            watch=lambda: nullcontext(memory),
            report=report,
            device="cpu",
        )
    memory.print_fit()


def pictures(root: Path) -> Path:
    """200 noisy patches of two colours to train on, and 16 to validate."""
    chance = np.random.default_rng(0)
    for split, count in (("train", 100), ("val", 8)):
        for name, colour in {"green": (40, 180, 60), "red": (210, 40, 50)}.items():
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = (np.array(colour) + chance.normal(0, 30, (32, 32, 3))).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(root / split / name / f"{i}.png")
    return root


class Memory(Silent):
    """Watches a run and reads what it takes."""

    def __init__(self, warmup: int, trace: bool):
        self.warmup, self.trace = warmup, trace
        self.steps: list[int] = []
        self.kilobytes: list[float] = []
        self.before: tuple[Any, Any] | None = None

    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None:
        if step == self.warmup and self.trace:
            tracemalloc.start(8)
            gc.collect()
            self.before = counted(), tracemalloc.take_snapshot()
        if step >= self.warmup and step % EVERY == 0:
            self.steps.append(step)
            self.kilobytes.append(resident())
            if step % 1000 == 0:
                print(f"step {step}: {self.kilobytes[-1]:.0f} kB", flush=True)

    def print_fit(self) -> None:
        x, y = np.array(self.steps), np.array(self.kilobytes)
        (slope, _), residuals, *_ = np.polyfit(x, y, 1, full=True)
        error = np.sqrt(residuals[0] / (len(x) - 2) / ((x - x.mean()) ** 2).sum())
        print(
            f"{slope:.3f} kB a step (standard error {error:.3f}) over steps {x[0]} to {x[-1]}; "
            f"from {y[:50].mean() / 1024:.1f} to {y[-50:].mean() / 1024:.1f} MB"
        )
        if self.before is not None:
            gc.collect()
            objects, allocated = self.before
            for kind, count in (counted() - objects).most_common(15):
                print(f"{count:+8d} {kind}")
            for line in tracemalloc.take_snapshot().compare_to(allocated, "traceback")[:10]:
                print(f"{line.size_diff / 1024:+.0f} kB, {line.count_diff:+d}")
                print("\n".join(line.traceback.format()))


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1024


def counted() -> collections.Counter[str]:
    return collections.Counter(type(one).__qualname__ for one in gc.get_objects())


if __name__ == "__main__":
    main()
