"""What a person asks for: train, resume, evaluate. The command line and notebooks call these."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from saccade.data.datasets import PACKAGED, Splits
from saccade.engine import baseline, distributed, kinds, make
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.evaluate import evaluate as count
from saccade.engine.run import Run, environment, write_json
from saccade.engine.teacher import teach
from saccade.engine.train import Report, Training
from saccade.engine.watch import Silent
from saccade.models.saved import load
from saccade.recipes.recipe import Classify, Data, Distill, Recipe, change
from saccade.recipes.recipe import group as words_of
from saccade.tasks.task import Metric, Task

Watch = Callable[[], Any]  # a Watcher to be used in a with-statement


def train(
    recipe: Recipe,
    data: str,
    out: str | Path,
    *,
    name: str = "",
    watch: Watch | None = None,
    report: Report | None = None,
    device: str | None = None,
) -> Run:
    """Train by a recipe on the images at `data` and keep all that comes of it in `out`.

    Under torchrun, call it in every process. If torchrun started this process again after a crash,
    the run goes on from its last checkpoint.
    """
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if again and (Path(out) / "recipe.json").exists():
        return resume(out, watch=watch, report=report, device=device)
    with distributed.joined(device) as group:
        if recipe.loop.shard and group.world == 1:
            raise ValueError(
                "loop.shard: parameters are split over processes, and there is one; "
                "start with 'torchrun --nproc-per-node N -m saccade train …'"
            )
        recipe = _anywhere(recipe)
        splits = kinds.of(recipe).find(data, recipe.data, recipe.loop.seed)
        recipe = make.resolved(recipe, len(splits.train))
        run: Run | Exception | None = None
        if group.first:
            try:
                title = name or recipe.model.name
                run = Run.create(out, title, recipe, _place(data), splits.classes)
                write_json(run.folder / "data.json", _told(splits))
                if splits.findings:
                    write_json(run.folder / "findings.json", splits.findings)
            except OSError as error:  # let the other processes know before this one gives up
                run = error
        run = distributed.told(run, group)
        if isinstance(run, Exception):
            raise run
        assert run is not None
        _fit(run, splits, group, watch, report, resumed=False)
    return run


def resume(
    folder: str | Path,
    data: str | None = None,
    *,
    watch: Watch | None = None,
    report: Report | None = None,
    device: str | None = None,
) -> Run:
    """Go on with a run from its last whole checkpoint, on any number of processes.

    `data` is where its images lie now, if they were moved.
    """
    run = Run.open(folder)
    if data is not None:
        run = dataclasses.replace(run, data=_place(data))
    with distributed.joined(device) as group:
        splits = images_of(run)
        if tuple(splits.classes) != run.classes:
            raise ValueError(
                f"resume: {run.data!r} has other classes than the run began with "
                f"({_difference(splits.classes, run.classes)}); restore the data"
            )
        _same(run, splits)
        _fit(run, splits, group, watch, report, resumed=True)
    return run


def _place(data: str) -> str:
    """Where images lie, whichever folder one stands in."""
    return data if data in PACKAGED else str(Path(data).absolute())


def _anywhere(recipe: Recipe) -> Recipe:
    """The recipe with whole paths, for a run to go on from another folder."""
    named = {"model": ("start",), "task": ("teacher", "classes")}
    for group, names in named.items():
        for name in names:
            value = getattr(getattr(recipe, group), name, "")
            if value and Path(value).exists():
                recipe = change(recipe, **{f"{group}.{name}": str(Path(value).absolute())})
    return recipe


def images_of(run: Run) -> Splits:
    """The images that a run was begun with."""
    return kinds.of(run.recipe).find(run.data, run.recipe.data, run.recipe.loop.seed)


def _told(splits: Splits) -> dict[str, Any]:
    """What tells a set from another."""
    parts = {"train": splits.train, "val": splits.val}
    return {k: {"images": len(part), "sha256": part.digest()} for k, part in parts.items()}


def _same(run: Run, splits: Splits) -> None:
    """Refuse to go on with other images: their order would change, and held-out ones be learnt."""
    then, now = run.known("data.json"), _told(splits)
    if not then or then == now:
        return
    counts = [f"{told['train']['images']} and {told['val']['images']}" for told in (then, now)]
    what = (
        f"{counts[1]} instead of {counts[0]}" if len(set(counts)) > 1 else "other names or labels"
    )
    raise ValueError(
        f"resume: {run.data!r} has other images to train and validate on than the run began with "
        f"({what}); restore them, or train anew (finetune with model.start={run.folder})"
    )


def _fit(
    run: Run,
    splits: Splits,
    group: Group,
    watch: Watch | None,
    report: Report | None,
    resumed: bool,
) -> None:
    shown = group.first and watch is not None
    with watch() if shown else nullcontext(Silent()) as watcher:
        for sentence in (splits.about, *splits.warnings):
            watcher.said(sentence)
        asked = run.recipe.loop.baseline and not (run.folder / "baseline.json").is_file()
        if asked and not isinstance(run.recipe.task, Classify):
            raise ValueError("loop.baseline: a linear model only tells classes; leave it off")
        if asked or isinstance(run.recipe.task, Distill):  # what takes long comes after refusals
            net = make.model(make.unstarted(run.recipe), len(run.classes))
            make.training(run.recipe, splits.train, net, group).close()
        if distributed.told(asked, group):
            if group.first:
                told = baseline.fit(run, splits)
                watcher.said(f"to beat: {told['name']} knows {told['top1']:.2f}%")
            distributed.wait(group)
        teacher = teach(run, splits, group, watcher)
        there = resumed and _can_go_on(run)
        recipe = make.unstarted(run.recipe) if there else run.recipe
        task = make.task(recipe, run.classes, teacher, splits.notes)
        make.tried(task, recipe)
        task.metric()  # a package that it lacks is missed now, not after an epoch
        training = Training(run, splits, task, group, watcher, report)
        try:
            if there:
                training.restore()
                watcher.said(f"going on at step {training.step} of {training.steps}")
                for sentence in _elsewhere(run):
                    watcher.said(sentence)
            elif resumed and group.first:
                run.rewind(0)
            if group.first:
                write_json(run.folder / "recipe.json", run.plain())  # its data may lie elsewhere
                if not (run.folder / "data.json").is_file():
                    write_json(run.folder / "data.json", _told(splits))
            with distributed.together(group, f"saccade resume {run.folder}"):
                training.fit()
        finally:
            training.close()


def _can_go_on(run: Run) -> bool:
    """Whether there is a checkpoint; a run that had one and lost it is not begun anew unasked."""
    if Checkpoints(run.folder).entry() is not None:
        return True
    if len(run.lines()) > 1:  # each was followed by a checkpoint
        raise FileNotFoundError(
            f"resume: {str(run.folder)!r} was evaluated {len(run.lines())} times but holds no "
            f"checkpoint; bring its checkpoints folder, or train anew with another --out"
        )
    return False


def _elsewhere(run: Run) -> list[str]:
    """What makes the last digits differ from those of the unbroken run, if anything."""
    then, now = run.known("environment.json"), environment()
    changed = [f"{k} {then[k]} -> {now[k]}" for k in ("torch", "threads", "processes", "device")
               if k in then and then[k] != now[k]]  # fmt: skip
    return [f"the last digits may differ from an unbroken run's: {', '.join(changed)}"] * bool(
        changed
    )


# -- a trained model ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Opened:
    """A trained model, ready to be asked."""

    kind: kinds.Kind
    task: Task
    test: Any
    """How it wants to be shown pictures."""
    classes: list[str]
    notes: dict[str, Any]
    """What its data wanted remembered."""
    asked: Any
    """Its task's words in the recipe."""

    @property
    def instead(self) -> str:
        """What to say to a command that cannot use it."""
        return f"; use 'saccade {self.kind.verb}' with it" if self.kind.verb else ""


def opened(model: str | Path, device: torch.device | str = "cpu") -> Opened:
    """A trained model from a run's folder or a file."""
    net: Any = load(model)
    if "classes" not in net.notes:
        raise ValueError(f"{str(model)!r} holds no class names; give a model that was trained here")
    return ready(net, device)


def ready(net: Any, device: torch.device | str = "cpu") -> Opened:
    """A trained model that was loaded, with the task that its notes tell of."""
    notes: dict[str, Any] = net.notes
    kind, asked = kinds.kept(notes)
    classes = notes["classes"]
    kept = notes.get("data", {})
    task = kind.task(asked, net, tuple(classes), kept).to(device).eval()
    shown = words_of("test", {"kind": kind.tests.__name__, **notes.get("test", {})})
    return Opened(kind, task, shown, classes, kept, asked)


def evaluate(
    model: str | Path,
    data: str | None = None,
    *,
    split: str = "val",
    batch: int = 64,
    device: str | None = None,
) -> Metric:
    """Count a trained model's figures over a set, whose classes are matched by name.

    Without `data`, and where it is the run's own, over the images that the run held out (or learnt
    from).
    """
    with distributed.joined(device) as group:
        ready = opened(model, group.device)
        kind, classes = ready.kind, ready.classes
        if data is None or _own(model, data):
            found = getattr(images_of(Run.open(model)), split)
        else:
            found = kind.every(data, classes) if split == "val" else kind.find(data, Data()).train
        images = kind.aligned(found, classes)
        metric = count(
            ready.task,
            make.unaugmented(
                kind, ready.test, images, ready.task.net, group, batch, make.workers(Data(), group)
            ),
            group,
        )
        metric.warnings = tuple(getattr(found, "warnings", ()))
        return metric


def _own(model: str | Path, data: str) -> bool:
    """Whether these are the images of the run itself, of which it has learnt some."""
    return (Path(model) / "recipe.json").is_file() and Run.open(model).data == _place(data)


def _difference(found: list[str], known: tuple[str, ...]) -> str:
    gone, new = set(known) - set(found), set(found) - set(known)
    said = [f"{min(gone)!r} is gone"] if gone else []
    said += [f"{min(new)!r} is new"] if new else []
    return " and ".join(said) or "their order differs"
