"""Small training runs in processes of their own, which can be killed, and what is left of them.

The processes are forked from a server that has torch and saccade imported, so that a whole run
takes about a second.
"""

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade.cli import REFUSED, main
from saccade.engine import session
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.run import Run
from saccade.recipes.recipe import Recipe, change
from tests.data import scenes
from tests.engine.classify_runs import PLAIN, folder, same
from tests.engine.dense_runs import SEGMENT
from tests.engine.detect_runs import THINGS, boxes_folder
from tools.campaign.patience import waited
from tools.campaign.verdict import Finding, check_end

LOOP = {"schedule.epochs": 2, "loop.save_every": 1, "loop.evaluate_every": 1}
RECIPES = {
    "classify": change(PLAIN, **LOOP, **{"loop.batch": 4, "loop.ema": 0.9, "augment.mixup": 0.8}),
    "detect": change(THINGS, **LOOP, **{"loop.batch": 2}),
    "segment": change(SEGMENT, **LOOP, **{"loop.batch": 2}),
}
RECIPES["tiny"] = change(RECIPES["classify"], **{"model.name": "test_resnet"})
WEIGHTS = tuple(6 if name == "tiny" else 1 for name in RECIPES)
"""How often each is taken where many runs are killed; `tiny` takes a third of the others' time."""
END = 120  # seconds in which a run shows a sign of life
MOST = 300  # seconds of the CPU that it takes at most


def make_data(task: str, place: Path) -> Path:
    """Images for three or four steps an epoch."""
    if task in ("classify", "tiny"):
        return folder(place, train=4, val=1)
    if task == "detect":
        return boxes_folder(place, train=6, val=2)
    return scenes.folder(place, train=6, val=2)


# -- inside a process -----------------------------------------------------------------------


def _inside(
    log: str, place: dict[str, str], plan: "Plan", act: str, words: tuple[Any, ...]
) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(place)
    torch.set_num_threads(1)
    import saccade.report.write as reports

    reports.Reporter = lambda: None  # a page and its pictures take longer than the run
    plan.prepare()
    {"train": _train, "resume": _resume}[act](*words)


def _train(recipe: Recipe, data: str, out: str) -> None:
    try:
        session.train(recipe, data, out, device="cpu")
    except REFUSED as error:
        print(f"saccade: {error}", file=sys.stderr)
        sys.exit(1)


def _resume(out: str) -> None:
    main(["resume", out, "--device", "cpu"])


@dataclass(frozen=True)
class Plan:
    """What stops a process from the inside: a call of the system, or a limit on files."""

    call: str = ""
    """The name of a function of `os`; SIGKILL comes before or after its n-th call."""
    n: int = 0
    after: bool = False
    limit: int = 0
    """Bytes that a file may have at most; 0: any number."""

    def prepare(self) -> None:
        if self.limit:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))
        if not self.call:
            return
        real, count = getattr(os, self.call), 0

        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == self.n and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            value = real(*arguments, **named)
            if count == self.n:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        setattr(os, self.call, counted)


# -- from outside ---------------------------------------------------------------------------


class Job:
    """One run in one process or several."""

    def __init__(self, log: Path, act: str, *words: Any, ranks: int = 1, plan: Plan | None = None):
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["tools.campaign.warm"])
        self.words, self.logs, self.processes = [act, *map(str, words[-1:])], [], []
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        for rank in range(ranks):
            place = {} if ranks == 1 else {
                "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "localhost",
                "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            texts = {key: str(value) for key, value in place.items()}
            path = log.with_name(f"{log.name}-{rank}.log")
            arguments = (str(path), texts, plan or Plan(), act, words)
            self.logs.append(path)
            self.processes.append(server.Process(target=_inside, args=arguments, daemon=True))
            self.processes[-1].start()

    def said(self, rank: int = 0) -> str:
        return self.logs[rank].read_text(errors="replace") if self.logs[rank].exists() else ""

    def wait(self) -> list[int]:
        """The exit codes; a run that stands still or has no end is killed, and a finding."""
        why = waited(self.join, self.pids, END, MOST)
        self.kill()
        if why is not None:
            message = "".join(map(self.said, range(len(self.logs))))
            raise Finding(f"{self.words}: {why}\n{message}")
        return [process.exitcode for process in self.processes]

    def join(self, seconds: float) -> bool:
        """Whether all processes ended, within so many seconds."""
        until = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        return all(process.exitcode is not None for process in self.processes)

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.exitcode is None]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def end(self) -> int:
        """The exit code of one process that should end well or with a sentence, or was killed."""
        code = self.wait()[0]
        if code != -signal.SIGKILL:
            check_end(self.words, code, self.said())
        return code


def standing(out: Path) -> tuple[int, int, list[str]]:
    """The last step that was reported, that of the last whole checkpoint, and what is damaged."""
    steps = [line["step"] for line in lines_of(out, "steps.jsonl")]
    try:
        state, damaged = Checkpoints(out).load()
    except FileNotFoundError:
        return max(steps, default=0), 0, []
    except ValueError as error:
        return max(steps, default=0), 0, [str(error)]
    entry = Checkpoints(out).entry()
    step = state["step"] if isinstance(state, dict) else entry["step"] if entry else 0
    return max(steps, default=0), step, damaged


def lines_of(out: Path, file: str) -> list[dict[str, Any]]:
    """The lines of a run, also where its recipe was not yet written."""
    return Run(out, "", RECIPES["classify"], "", ()).lines(file)


def check_standing(out: Path, before: int) -> int:
    """After a kill, at most one step is lost and nothing damaged; gives the checkpoint's step."""
    reported, saved, damaged = standing(out)
    if damaged:
        raise Finding(f"damaged after a kill: {damaged}")
    if reported - saved > 1:
        raise Finding(f"step {reported} was reached, the last checkpoint is of step {saved}")
    if saved < before:
        raise Finding(f"there was a checkpoint of step {before}, now the last is of step {saved}")
    return saved


def check_equal(out: Path, unbroken: Path) -> None:
    """A run that was broken ends with the bits of one that was not."""
    for file in ("report.jsonl", "steps.jsonl"):
        ours, theirs = (lines_of(place, file) for place in (out, unbroken))
        difference = same(ours, theirs)
        if difference is not None:
            raise Finding(f"{file} differs from the unbroken run's: {difference}")
    if (out / "model.safetensors").read_bytes() != (unbroken / "model.safetensors").read_bytes():
        raise Finding("model.safetensors differs from the unbroken run's")
    ours, theirs = (whole_state(place) for place in (out, unbroken))
    difference = same(ours, theirs)
    if difference is not None:
        raise Finding(f"the last checkpoint differs from the unbroken run's: {difference}")


def whole_state(out: Path) -> Any:
    """The last checkpoint as one tree, whether it is split or not."""
    from saccade.engine import shards
    from tests.engine.old_checkpoints import whole

    state, damaged = Checkpoints(out).load()
    if damaged:
        raise Finding(f"damaged at the end: {damaged}")
    if isinstance(state, dict):
        return state
    leaves = {str(path): whole(value) for path, value in shards.leaves(state).items()}
    return {"leaves": leaves, "rest": shards.rest(state)}


class Yard:
    """Data and unbroken runs, made when they are first asked for."""

    def __init__(self, place: Path):
        self.place = place
        self.data: dict[str, Path] = {}
        self.unbroken: dict[str, tuple[Path, float]] = {}

    def images(self, task: str) -> Path:
        if task not in self.data:
            self.data[task] = make_data(task, self.place / f"data-{task}")
        return self.data[task]

    def reference(self, name: str, task: str, recipe: Recipe, ranks: int = 1) -> tuple[Path, float]:
        """A run that nothing disturbed, and how long it takes; the second of two, for the time."""
        if name not in self.unbroken:
            out = self.place / f"unbroken-{name}"
            seconds = 0.0
            for _ in range(2):
                shutil.rmtree(out, ignore_errors=True)
                began = time.monotonic()
                job = Job(self.place / "log", "train", recipe, str(self.images(task)), str(out),
                          ranks=ranks)  # fmt: skip
                if any(job.wait()):
                    raise Finding(f"an undisturbed run fails\n{job.said()}")
                seconds = time.monotonic() - began
            self.unbroken[name] = out, seconds
        return self.unbroken[name]


def pause(chance: random.Random, job: Job, seconds: float) -> None:
    """Wait for a random moment of a run, or until it ends."""
    until = time.monotonic() + chance.uniform(0, seconds)
    while time.monotonic() < until and any(p.exitcode is None for p in job.processes):
        time.sleep(0.001)


def clear(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path)
