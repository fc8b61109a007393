"""What a person asks for: train, resume, evaluate. The command line and notebooks call these."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from saccade.data.datasets import Splits, aligned, every, find
from saccade.engine import baseline, distributed, make
from saccade.engine.distributed import Group
from saccade.engine.evaluate import evaluate as count
from saccade.engine.progress import Silent
from saccade.engine.run import Run
from saccade.engine.teacher import teach
from saccade.engine.train import Training
from saccade.models.saved import load
from saccade.recipes.recipe import Data, Recipe, Test
from saccade.tasks.classify import Classify
from saccade.tasks.task import Metric

Watch = Callable[[], Any]  # a Watcher to be used in a with-statement


def train(
    recipe: Recipe,
    data: str,
    out: str | Path,
    *,
    name: str = "",
    watch: Watch | None = None,
    device: str | None = None,
) -> Run:
    """Train by a recipe on the images at `data` and keep all that comes of it in `out`.

    Under torchrun, call it in every process. If torchrun started this process again after a crash,
    the run goes on from its last checkpoint.
    """
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if again and (Path(out) / "recipe.json").exists():
        return resume(out, watch=watch, device=device)
    with distributed.joined(device) as group:
        if recipe.loop.shard and group.world == 1:
            raise ValueError(
                "loop.shard: parameters are split over processes, and there is one; "
                "start with 'torchrun --nproc-per-node N -m saccade train …'"
            )
        splits = _found(data, recipe, group)
        run: Run | Exception | None = None
        if group.first:
            try:
                run = Run.create(out, name or recipe.model.name, recipe, data, splits.classes)
            except OSError as error:  # let the other processes know before this one gives up
                run = error
        run = distributed.told(run, group)
        if isinstance(run, Exception):
            raise run
        assert run is not None
        _fit(run, splits, group, watch, resumed=False)
    return run


def resume(folder: str | Path, *, watch: Watch | None = None, device: str | None = None) -> Run:
    """Go on with a run from its last whole checkpoint, on any number of processes."""
    run = Run.open(folder)
    with distributed.joined(device) as group:
        splits = _found(run.data, run.recipe, group)
        if tuple(splits.classes) != run.classes:
            raise ValueError(
                f"resume: {run.data!r} has other classes than the run began with "
                f"({_difference(splits.classes, run.classes)}); restore the data"
            )
        _fit(run, splits, group, watch, resumed=True)
    return run


def _found(data: str, recipe: Recipe, group: Group) -> Splits:
    return find(data, recipe.data, recipe.loop.seed)


def _fit(run: Run, splits: Splits, group: Group, watch: Watch | None, resumed: bool) -> None:
    shown = group.first and watch is not None
    with watch() if shown else nullcontext(Silent()) as watcher:
        if run.recipe.loop.baseline and not (run.folder / "baseline.json").is_file():
            if group.first:
                told = baseline.fit(run, splits)
                watcher.said(f"to beat: {told['name']} knows {told['top1']:.2f}%")
            distributed.wait(group)
        teacher = teach(run, splits, group, watcher)
        task = make.task(run.recipe, run.classes, teacher)
        training = Training(run, splits, task, group, watcher)
        if resumed and training.checkpoints.entry() is not None:
            training.restore()
            watcher.said(f"going on at step {training.step} of {training.steps}")
        elif resumed and group.first:
            run.rewind(0)
        with distributed.together(group, f"saccade resume {run.folder}"):
            training.fit()
        training.close()


# -- a trained model ------------------------------------------------------------------------


def opened(model: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """A trained classifier and its notes, from a run's folder or a file."""
    path = Path(model)
    file = path / "model.safetensors" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise FileNotFoundError(
            f"{str(path)!r} holds no trained model yet; one is written with the first evaluation"
        )
    net: Any = load(file)
    notes: dict[str, Any] = net.notes
    if "classes" not in notes:
        raise ValueError(f"{str(file)!r} holds no class names; give a model that was trained here")
    return net, notes


def evaluate(
    model: str | Path,
    data: str | None = None,
    *,
    split: str = "val",
    batch: int = 64,
    device: str | None = None,
) -> Metric:
    """Count a trained model's figures over a set, whose classes are matched by name.

    Without `data`, over the images that the run itself held out (or learnt from).
    """
    net, notes = opened(model)
    test = test_of(notes)
    with distributed.joined(device) as group:
        classes = notes["classes"]
        if data is None:
            run = Run.open(model)
            found = getattr(find(run.data, run.recipe.data, run.recipe.loop.seed), split)
        else:
            found = every(data, classes) if split == "val" else find(data, Data()).train
        found = aligned(found, classes)
        task = Classify(net, classes).to(group.device)
        return count(task, make.unaugmented(test, found, net, group, batch), group)


def test_of(notes: dict[str, Any]) -> Test:
    """How a trained model wants to be shown pictures."""
    known = {f.name for f in dataclasses.fields(Test)}
    return Test(**{k: v for k, v in notes.get("test", {}).items() if k in known})


def _difference(found: list[str], known: tuple[str, ...]) -> str:
    gone, new = set(known) - set(found), set(found) - set(known)
    said = [f"{min(gone)!r} is gone"] if gone else []
    said += [f"{min(new)!r} is new"] if new else []
    return " and ".join(said) or "their order differs"
