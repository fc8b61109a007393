"""A set and a recipe so small that a run takes seconds, and processes that can be killed."""

import multiprocessing
import pickle
import socket
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from saccade.engine import session
from saccade.engine.watch import Silent
from saccade.recipes import book
from saccade.recipes.augment import Augment, Test
from saccade.recipes.recipe import Loop, Model, Optim, Schedule, change
from saccade.report.write import Reporter

COLOURS = {"blue": (30, 60, 200), "green": (40, 180, 60), "red": (210, 40, 50)}


def folder(root: Path, train: int = 8, val: int = 3, side: int = 40) -> Path:
    """Noisy patches of three colours, which a network tells apart within a few steps."""
    chance = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                noise = chance.normal(0, 30, (side, side, 3))
                pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


PLAIN = change(
    book.find("quick"),
    about="small",
    model=Model(name="qna_nano", drop_path=0.0),
    data__workers=0,
    augment=Augment(size=32, scale=(0.8, 1.0)),
    test=Test(size=32, crop=1.0),
    optim=Optim(name="adamw", lr=2e-3, weight_decay=0.05),
    schedule=Schedule(epochs=2, warmup=0.5),
    loop=Loop(batch=8),
)

# Everything on at once.
FULL = change(
    PLAIN,
    model=Model(name="qna_nano", drop_path=0.2),
    augment=Augment(
        size=32, scale=(0.5, 1.0), rand="rand-m9-n2-mstd0.5", jitter=0.3, jitter_share=0.8,
        grey=0.2, erase=0.5, mixup=0.8, cutmix=1.0, repeats=2,
    ),
    optim__clip=1.0,
    optim__layer_decay=0.8,
    task__smoothing=0.1,
    loop=Loop(batch=8, part=4, ema=0.9, save_every=1),
)  # fmt: skip


class At(Silent):
    """Do something at a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def stepped(self, step, terms, rate, images):
        if step == self.step:
            self.act()


class Losses(At):
    """Remember the loss of every step."""

    def __init__(self):
        self.losses = []

    def stepped(self, step, terms, rate, images):
        self.losses.append(sum(terms.values()))


def fit(recipe, data, out, watcher=None):
    watch = None if watcher is None else (lambda: watcher)
    return session.train(recipe, str(data), out, watch=watch, report=Reporter(), device="cpu")


def apart(target, *arguments, ranks=1):
    """Run in processes of their own, as torchrun would; gives their exit codes.

    They are forked from a server without threads, for a test process has some and forks badly;
    only functions that cannot be sent there are forked from here.
    """
    try:
        pickle.dumps((target, arguments))
        fork = multiprocessing.get_context("forkserver")
        fork.set_forkserver_preload(["torch", "saccade", "tests.engine.classify_runs"])
    except (AttributeError, TypeError, pickle.PicklingError):
        fork = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    jobs = []
    for rank in range(ranks):
        place = {} if ranks == 1 else {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "localhost",
            "MASTER_PORT": port,
        }  # fmt: skip
        jobs.append(fork.Process(target=_placed, args=(place, target, arguments)))
        jobs[-1].start()
    for job in jobs:
        job.join(240)
        job.kill()
    return [job.exitcode for job in jobs]


def _placed(place, target, arguments):
    import os

    os.environ.update({key: str(value) for key, value in place.items()})
    torch.set_num_threads(1)
    target(*arguments)


def same(a, b, path=""):
    """The first place where two states differ by as much as a bit, if any."""
    if isinstance(a, torch.Tensor):
        return None if torch.equal(a, b) else path
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"{path}: {a.keys() ^ b.keys()}"
        differences = (
            same(a[k], b[k], f"{path}/{k}") for k in a if k not in ("seconds", "cpu", "cpu_seconds")
        )
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return path
        differences = (same(x, y, f"{path}/{i}") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    else:
        return None if a == b else f"{path}: {a} and {b}"
    return next((place for place in differences if place is not None), None)
