"""What a person wants: train, resume, evaluate. The command line and notebooks call these."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from saccade import tasks
from saccade.data.datasets import PACKAGED, Splits
from saccade.data.reader import Batch, Readable
from saccade.engine import distributed, make
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.evaluate import evaluate as count
from saccade.engine.run import Run, environment, write_json
from saccade.engine.state import weight_names
from saccade.engine.train import Report, Training
from saccade.engine.watch import Silent, Watcher
from saccade.layers.branches import fit_norms
from saccade.models import describe
from saccade.models.saved import load
from saccade.recipes.disk import read_group
from saccade.recipes.group import path_fields
from saccade.recipes.recipe import Data, Recipe, change
from saccade.tasks.definition import Preparation, TaskDefinition
from saccade.tasks.figures import formatted
from saccade.tasks.task import Metric, Task

Watch = Callable[[], Any]  # a Watcher to be used in a with-statement
PREPARED = 64  # images in a batch that a task looks at before its first step


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
    """Train by a recipe, and keep all results in a folder.

    Under torchrun, call it in every process. If torchrun started this process again after a crash,
    the run goes on from its last checkpoint.

    Args:
        recipe: what is trained, and how
        data: where the images lie, as the recipe's task wants them
        out: the run's folder; one that holds a run already is refused
        name: the recipe's name in reports; the model's if empty
        watch: makes a watcher of the run, such as a progress bar
        report: called after each evaluation, such as `saccade.report.write.Reporter()`
        device: cpu or cuda; the best there is if None

    Returns:
        the run; its best model is `model.safetensors` in its folder
    """
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if again and (Path(out) / "recipe.json").exists():
        return resume(out, watch=watch, report=report, device=device)
    with distributed.process_group(device) as group:
        if recipe.loop.shard and group.world == 1:
            raise ValueError(
                "loop.shard: parameters are split over processes, and there is one; "
                "start with 'torchrun --nproc-per-node N -m saccade train …'"
            )
        recipe = _with_absolute_paths(recipe)
        splits = tasks.of(recipe).find(data, recipe.data, recipe.loop.seed)
        recipe = make.with_epochs(recipe, len(splits.train))
        run: Run | Exception | None = None
        if group.first:
            try:
                title = name or recipe.model.name
                run = Run.create(out, title, recipe, _absolute(data), splits.classes)
                write_json(run.folder / "data.json", _fingerprint(splits))
                if splits.findings:
                    write_json(run.folder / "findings.json", splits.findings)
            except OSError as error:  # let the other processes know before this one gives up
                run = error
        run = distributed.broadcast(run, group)
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

    Args:
        folder: the run's
        data: where its images lie now, if they were moved
        watch: as in `train`
        report: as in `train`
        device: as in `train`
    """
    run = Run.open(folder)
    if data is not None:
        run = dataclasses.replace(run, data=_absolute(data))
    with distributed.process_group(device) as group:
        splits = images_of(run)
        if tuple(splits.classes) != run.classes:
            raise ValueError(
                f"resume: {run.data!r} has other classes than the run began with "
                f"({_difference(splits.classes, run.classes)}); restore the data"
            )
        _check_same_images(run, splits)
        _fit(run, splits, group, watch, report, resumed=True)
    return run


def _absolute(data: str) -> str:
    """Where images lie, for a run that goes on in another working directory."""
    return data if data in PACKAGED else str(Path(data).absolute())


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, for a run that goes on in another working directory."""
    for group in ("model", "task"):
        for name in path_fields(getattr(recipe, group)):
            value = getattr(getattr(recipe, group), name)
            if value and Path(value).exists():
                recipe = change(recipe, **{f"{group}.{name}": str(Path(value).absolute())})
    return recipe


def images_of(run: Run) -> Splits:
    """The images that a run was begun with."""
    return tasks.of(run.recipe).find(run.data, run.recipe.data, run.recipe.loop.seed)


def _fingerprint(splits: Splits) -> dict[str, Any]:
    """The number of images of each set, and a checksum of their names and labels."""
    parts = {"train": splits.train, "val": splits.val}
    return {k: {"images": len(part), "sha256": part.digest()} for k, part in parts.items()}


def _check_same_images(run: Run, splits: Splits) -> None:
    """Refuse to go on with other images: held-out ones might be learnt from."""
    then, now = run.known("data.json"), _fingerprint(splits)
    if not then or then == now:
        return
    counts = [f"{sets['train']['images']} and {sets['val']['images']}" for sets in (then, now)]
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
    definition = tasks.of(run.recipe)
    if run.recipe.loop.baseline and definition.baseline is None:
        raise ValueError(
            f"loop.baseline: there is no simple model to compare with for {definition.name!r}; "
            f"leave it off"
        )
    visible = group.first and watch is not None
    with watch() if visible else nullcontext(Silent()) as watcher:
        for sentence in (splits.about, *splits.warnings):
            watcher.say(sentence)
        has_checkpoint = resumed and _can_go_on(run)
        recipe = make.without_start(run.recipe) if has_checkpoint else run.recipe
        task = make.task(recipe, run.classes, splits.notes)
        if has_checkpoint:
            fit_norms(task, weight_names(Checkpoints(run.folder)))
        make.try_sizes(task, recipe)
        task.metric()  # fails now, not after an epoch, if a package is missing
        training = Training(run, splits, task, group, watcher, report)
        try:
            _prepare(definition, training, splits, watcher)
            if has_checkpoint:
                training.restore()
                watcher.say(f"going on at step {training.step} of {training.steps}")
                for sentence in _changed_machine(run):
                    watcher.say(sentence)
            elif resumed and group.first:
                run.rewind(0)
            if group.first:
                write_json(run.folder / "recipe.json", run.plain())  # its data may lie elsewhere
                if not (run.folder / "data.json").is_file():
                    write_json(run.folder / "data.json", _fingerprint(splits))
            with distributed.explain_lost_process(group, f"saccade resume {run.folder}"):
                training.fit()
        finally:
            training.close()


def _prepare(
    definition: TaskDefinition, training: Training, splits: Splits, watcher: Watcher
) -> None:
    """Fit the baseline and make what the task needs. All that could be refused was refused."""
    run, group, net = training.run, training.group, training.task.net

    def batches(images: Readable, test: Any) -> Iterator[Batch]:
        alone = Group(device=group.device)
        loader = make.unaugmented(
            definition, test, images, net, alone, PREPARED, make.workers(run.recipe.data, group)
        )
        try:
            for parts in loader.epoch(0):
                yield from parts
        finally:
            loader.close()

    def make_once(file: Path, make_file: Callable[[], None]) -> None:
        if distributed.broadcast(not file.is_file(), group):
            if group.first:
                make_file()
            distributed.barrier(group)

    preparation = Preparation(
        run.recipe, run.folder, run.classes, splits, net, group.device, batches, make_once,
        watcher.say,
    )  # fmt: skip
    baseline, file = definition.baseline, run.folder / "baseline.json"

    def fit_baseline() -> None:
        assert baseline is not None
        figures = baseline(preparation)
        write_json(file, figures)
        best = training.task.best
        watcher.say(f"to beat: {figures['name']} reaches {formatted(best, figures[best])}")

    if run.recipe.loop.baseline:
        make_once(file, fit_baseline)
    if definition.prepare is not None:
        definition.prepare(preparation, training.task)


def _can_go_on(run: Run) -> bool:
    """Whether there is a checkpoint; a run that had one and lost it is refused."""
    if Checkpoints(run.folder).entry() is not None:
        return True
    if len(run.lines()) > 1:  # each was followed by a checkpoint
        raise FileNotFoundError(
            f"resume: {str(run.folder)!r} was evaluated {len(run.lines())} times but holds no "
            f"checkpoint; bring its checkpoints folder, or train anew with another --out"
        )
    return False


def _changed_machine(run: Run) -> list[str]:
    """What makes the last digits differ from those of a run without a break, if anything."""
    then, now = run.known("environment.json"), environment()
    changed = [f"{k} {then[k]} -> {now[k]}" for k in ("torch", "threads", "processes", "device")
               if k in then and then[k] != now[k]]  # fmt: skip
    return [f"the last digits may differ from an unbroken run's: {', '.join(changed)}"] * bool(
        changed
    )


# -- a trained model ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its task, ready for pictures."""

    definition: TaskDefinition
    task: Task
    test: Any
    """The test settings by which it wants to see pictures."""
    classes: list[str]
    notes: dict[str, Any]
    """What its data wanted it to remember, such as ids of classes."""
    settings: Any
    """Its task's group of the recipe."""

    def transform(self, test: Any = None) -> Any:
        """What is done to a picture before the model sees it, by its own test settings or these."""
        about = describe.timm_config(self.task.net)
        settings = self.test if test is None else test
        return self.definition.test_transform(settings, about["mean"], about["std"])


def opened(
    model: str | Path, device: torch.device | str = "cpu", command: str | None = None
) -> LoadedModel:
    """A trained model from a run's folder or a file.

    Args:
        model: the run's folder, the file, or the name of a model that comes with saccade
        device: where it should compute
        command: the command that wants to use it; a model of another command is refused
    """
    net: Any = load(model)
    if "classes" not in net.notes:
        raise ValueError(f"{str(model)!r} holds no class names; give a model that was trained here")
    one = ready(net, device)
    own = one.definition.command
    if command is not None and command != own:
        instead = f"; use 'saccade {own}' with it" if own else ""
        raise ValueError(f"{command}: {str(model)!r} was trained to {one.definition.name}{instead}")
    return one


def ready(net: Any, device: torch.device | str = "cpu") -> LoadedModel:
    """A network that `load` gave, with the task that its notes name."""
    notes: dict[str, Any] = net.notes
    definition, settings = tasks.of_notes(notes)
    classes, data = notes["classes"], notes.get("data", {})
    task = definition.task(settings, net, tuple(classes), data).to(device).eval()
    test = read_group("test", {"kind": definition.test.__name__, **notes.get("test", {})})
    return LoadedModel(definition, task, test, classes, data, settings)


def untrained(name: str) -> LoadedModel | None:
    """A model with fresh weights by its name in a paper, its classes numbered; None if unknown."""
    fresh = tasks.untrained(name)
    if fresh is None:
        return None
    definition = tasks.of_settings(fresh.settings)
    classes = [f"class {i}" for i in range(int(fresh.net.num_classes))]
    task = definition.task(fresh.settings, fresh.net, tuple(classes), {}).eval()
    return LoadedModel(definition, task, fresh.test, classes, {}, fresh.settings)


def evaluate(
    model: str | Path,
    data: str | None = None,
    *,
    split: str = "val",
    batch: int = 64,
    device: str | None = None,
) -> Metric:
    """Count a trained model's figures over a set, whose classes are matched by name.

    Args:
        model: a run's folder, a saved model, or the name of one that comes with saccade
        data: the images; if None, or if they are the run's own, those that the run held out
        split: "val", or "train" for the images that the run learnt from
        batch: images at once
        device: cpu or cuda; the best there is if None
    """
    with distributed.process_group(device) as group:
        one = opened(model, group.device)
        definition, classes = one.definition, one.classes
        if data is None or _is_own(model, data):
            images = getattr(images_of(Run.open(model)), split)
        elif split == "val":
            images = definition.every(data, classes)
        else:
            images = definition.find(data, Data(), 0).train
        loader = make.unaugmented(
            definition, one.test, definition.align(images, classes), one.task.net, group, batch,
            make.workers(Data(), group),
        )  # fmt: skip
        metric = count(one.task, loader, group)
        metric.warnings = tuple(getattr(images, "warnings", ()))
        return metric


def _is_own(model: str | Path, data: str) -> bool:
    """Whether these are the images of the run itself, of which it has learnt some."""
    return (Path(model) / "recipe.json").is_file() and Run.open(model).data == _absolute(data)


def _difference(now: list[str], then: tuple[str, ...]) -> str:
    gone, new = set(then) - set(now), set(now) - set(then)
    sentences = [f"{min(gone)!r} is gone"] if gone else []
    sentences += [f"{min(new)!r} is new"] if new else []
    return " and ".join(sentences) or "their order differs"
