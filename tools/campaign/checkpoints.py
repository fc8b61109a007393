"""Damaged checkpoints and side files: what is loaded is what was written, or nothing is."""

import contextlib
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import torch

from saccade.engine import former, shards
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.train import Stopped
from saccade.engine.watch import Silent
from saccade.recipes.recipe import change
from tests.attack import damage
from tests.engine.classify_runs import At, same
from tests.engine.old_checkpoints import whole, write_split, write_whole
from tests.engine.test_shards import save as save_split
from tools.campaign.runs import RECIPES, check_equal, make_data
from tools.campaign.verdict import Finding, Outcome, attempted, command


class Damages:
    """Stores of every format with two checkpoints each, and one run of which a step is left."""

    def __init__(self, place: Path):
        self.place = place
        self.stores = {name: place / name for name in ("whole", "split", "former", "former split")}
        for step in (1, 2):
            Checkpoints(self.stores["whole"]).save(_state(step), step, 1.0 / step)
            save_split(self.stores["split"], step, float(step))
        write_whole(self.stores["former"], _state(2), 2)
        write_split(self.stores["former split"], {"model": {"w": torch.ones(64)}}, {"best": 2.0}, 2)
        self.known = {name: {} for name in self.stores}
        for name, store in self.stores.items():
            for entry in Checkpoints(store).index["entries"]:
                self.known[name][entry["step"]] = _tree(Checkpoints(store).read(entry))
        self.run: tuple[Path, Path] | None = None

    def close(self) -> None:
        return

    def runs(self) -> tuple[Path, Path]:
        """A run that was stopped in its middle, and the same to its end."""
        if self.run is None:
            torch.set_num_threads(1)
            recipe = change(RECIPES["segment"], **{"schedule.epochs": 1})
            data = make_data("segment", self.place / "data")
            stopped, ended = self.place / "stopped", self.place / "ended"
            ask = At(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
            with contextlib.suppress(Stopped):
                fit_plain(recipe, data, stopped, ask)
            fit_plain(recipe, data, ended, None)
            self.run = stopped, ended
        return self.run

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        if chance.random() < 0.03:
            return self.side_file(chance, folder)
        name = chance.choices(list(self.stores), (4, 4, 1, 1))[0]
        run = folder / "run"
        shutil.copytree(self.stores[name], run)
        indexed = chance.random() < 0.5
        if not indexed:
            (run / "checkpoints/index.json").unlink()
        acts = harmed(run / "checkpoints", chance, chance.choice((1, 1, 1, 2, 3)))
        tree, sentence = attempted(lambda: _tree(Checkpoints(run).load()[0]))
        what = f"{name}, {'with' if indexed else 'without'} an index: {acts}"
        if sentence is not None:
            return Outcome(True, f"{what}: {sentence}")
        step = tree.get("step")
        difference = same(self.known[name].get(step), tree)
        if difference is not None:
            raise Finding(f"{what}: loaded silently corrupt at {difference}")
        return Outcome(False, what)

    def side_file(self, chance: random.Random, folder: Path) -> Outcome:
        """`saccade resume` of a run with any file damaged ends as the unbroken one, or refuses."""
        stopped, ended = self.runs()
        run = folder / "run"
        shutil.copytree(stopped, run)
        place = chance.choice((run, run, run / "checkpoints"))
        acts = harmed(place, chance, chance.choice((1, 1, 2)))
        code, message = in_this_process(["resume", str(run), "--device", "cpu"])
        what = f"a run: {acts}"
        if code:
            return Outcome(True, f"{what}: {message}")
        try:
            check_equal(run, ended)
        except Finding as error:
            if any("report.jsonl" in act or "steps.jsonl" in act for act in acts) and (
                "jsonl differs" in str(error)
            ):
                return Outcome(False, f"{what}: lines of before are left out")
            raise Finding(f"{what}: {error}\n{message}") from error
        return Outcome(False, what)


def harmed(folder: Path, chance: random.Random, times: int) -> list[str]:
    """Damage files of a folder, as long as there is one; gives what was done."""
    acts = []
    for _ in range(times):
        if any(path.is_file() for path in folder.rglob("*")):
            acts.append(damage(folder, chance))
    return acts


def fit_plain(recipe: Any, data: Path, out: Path, watcher: Silent | None) -> None:
    from saccade.engine import session

    watch = None if watcher is None else (lambda: watcher)
    session.train(recipe, str(data), out, watch=watch, device="cpu")


def in_this_process(words: list[str]) -> tuple[int, str]:
    """A command, without processes that read for it, and without the page that it would draw."""
    import saccade.report.write as reports
    from saccade.engine import make

    whole = reports.Reporter, make.workers
    reports.Reporter, make.workers = (lambda: None), (lambda *_: 0)
    try:
        return command(words)
    finally:
        reports.Reporter, make.workers = whole


def _state(step: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((64,), float(step))}, "rng": (3, (1, 2), None), "n": step}


def _tree(state: Any) -> dict[str, Any]:
    """A loaded checkpoint as one tree, of every format."""
    if isinstance(state, dict):
        return state
    kind: Any = former if former.is_former(state) else shards
    rest = kind.rest(state)
    leaves = {str(path): whole(value) for path, value in kind.leaves(state).items()}
    return {"leaves": leaves, "rest": rest, "step": rest.get("step")}
