"""Train, resume and evaluate: what the command line and `saccade.train` call."""

import dataclasses
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from saccade import tasks
from saccade.data.datasets import PACKAGED, Splits, fewer
from saccade.data.reader import Batch, Readable
from saccade.engine import changes, distributed, lock, make, outside
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.evaluate import evaluate as count
from saccade.engine.run import Run, environment
from saccade.engine.state import weight_names
from saccade.engine.train import Report, Training
from saccade.engine.watch import Silent, Watcher
from saccade.layers.branches import fit_norms
from saccade.models import describe
from saccade.models.saved import control, load
from saccade.recipes.disk import read_group
from saccade.recipes.group import path_fields
from saccade.recipes.recipe import Data, Recipe, change
from saccade.tasks.definition import Preparation, TaskDefinition
from saccade.tasks.figures import formatted, label_of
from saccade.tasks.task import Metric, Task

Watch = Callable[[], Any]  # a Watcher to be used in a with-statement
PREPARED = 64  # images in a batch that a task looks at before its first step
AT_ONCE = 64  # images in a batch that is evaluated


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
        return resume(out, trust=True, watch=watch, report=report, device=device)
    with distributed.process_group(device) as group:
        if recipe.loop.shard and group.world == 1:
            raise ValueError(
                "loop.shard: parameters are split over processes, and there is one; "
                "start with 'torchrun --nproc-per-node N -m saccade train …'"
            )
        recipe = _with_absolute_paths(recipe)
        splits = _images(recipe, data)
        recipe = make.with_epochs(recipe, len(splits.train))

        def create() -> tuple[Run, dict[str, Any]]:
            title = name or recipe.model.name
            run = Run.create(out, title, recipe, _absolute(data), splits.classes)
            data_state = changes.fingerprint(splits, recipe.loop.seed)
            run.write_json("data.json", data_state)
            if splits.findings:
                run.write_json("findings.json", splits.findings)
            return run, data_state

        with _locked(out, group):
            run, fingerprint = distributed.first_does(create, group)
            _fit(run, splits, group, watch, report, fingerprint)
    return run


def resume(
    folder: str | Path,
    data: str | None = None,
    *,
    force: bool = False,
    trust: bool = False,
    watch: Watch | None = None,
    report: Report | None = None,
    device: str | None = None,
) -> Run:
    """Go on with a run from its last whole checkpoint, on any number of processes.

    Args:
        folder: the run's
        data: where its images lie now, if they were moved
        force: go on although images have other content, or recipe.json was edited
        trust: open and fetch what the recipe names beside the run, such as a teacher
        watch: as in `train`
        report: as in `train`
        device: as in `train`
    """
    if not (Path(folder) / "checkpoints").is_dir():
        Run.open(folder)  # refused before anything is written
    with distributed.process_group(device) as group, _locked(folder, group):
        run, about, whole, sentences = distributed.first_does(lambda: _last(folder), group)
        if data is not None:
            run = dataclasses.replace(run, data=_absolute(data))
        splits = images_of(run)
        if tuple(splits.classes) != run.classes:
            raise ValueError(
                f"resume: {run.data!r} has other classes than the run began with "
                f"({_difference(splits.classes, run.classes)}); restore the data"
            )

        def compare() -> tuple[dict[str, Any], list[str]]:
            now = changes.fingerprint(splits, run.recipe.loop.seed)
            edits = changes.check_recipe(run, about, force)
            return now, [*edits, *changes.check_images(run, splits, about, now, force)]

        fingerprint, more = distributed.first_does(compare, group)
        _fit(run, splits, group, watch, report, fingerprint, [*sentences, *more], whole, trust)
    return run


def _last(folder: str | Path) -> tuple[Run, dict[str, Any], str | None, list[str]]:
    """A run, what its last whole checkpoint says about it, its file, and what is damaged."""
    checkpoints = Checkpoints(folder)
    last = checkpoints.last_whole()
    about = checkpoints.about(last) if last is not None else {}
    whole = last["file"] if last is not None else None
    try:
        return Run.open(folder), about, whole, []
    except (ValueError, FileNotFoundError) as error:
        if last is None or "recipe" not in about:
            raise
        sentence = f"the recipe is taken from the checkpoint {last['file']}: {error}"
        checkpoint = checkpoints.folder / last["file"]
        return Run.read(Path(folder), about, checkpoint), about, whole, [sentence]


@contextmanager
def _locked(folder: str | Path, group: Group) -> Generator[None]:
    """Hold the run's folder for this job; the first process does it for all."""
    with ExitStack() as stack:
        distributed.first_does(lambda: stack.enter_context(lock.hold(folder)), group)
        yield


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
    return _images(run.recipe, run.data)


def _images(recipe: Recipe, data: str) -> Splits:
    splits = tasks.of(recipe).find(data, recipe.data, recipe.loop.seed)
    for name in splits.classes:
        if control(name):
            raise ValueError(f"{data!r}: the class {name[:60]!r} has control characters; rename it")
    return fewer(splits, recipe.data.share)


def _fit(
    run: Run,
    splits: Splits,
    group: Group,
    watch: Watch | None,
    report: Report | None,
    fingerprint: dict[str, Any],
    sentences: Sequence[str] | None = None,
    whole: str | None = None,
    trust: bool = False,
) -> None:
    """Train to the end.

    `sentences` are those about a run that goes on, None for a new one; `whole` is the file of its
    last whole checkpoint, and `trust` is `resume`'s.
    """
    definition, resumed = tasks.of(run.recipe), sentences is not None
    if run.recipe.loop.baseline and definition.baseline is None:
        raise ValueError(
            f"loop.baseline: there is no simple model to compare with for {definition.name!r}; "
            f"leave it off"
        )
    visible = group.first and watch is not None
    with watch() if visible else nullcontext(Silent()) as watcher:
        for sentence in (*(sentences or ()), splits.about, *splits.warnings):
            watcher.say(sentence)
        has_checkpoint = resumed and _can_go_on(run)
        recipe = make.without_start(run.recipe) if has_checkpoint else run.recipe
        if resumed and not trust:
            outside.check(recipe, run.folder)
        task = make.task(recipe, run.classes, splits.notes)
        if has_checkpoint and whole is not None:
            fit_norms(task, weight_names(run.folder / "checkpoints" / whole))
        make.try_sizes(task, recipe)
        task.metric()  # fails now, not after an epoch, if a package is missing
        short = changes.shortened(fingerprint)
        training = Training(run, splits, task, group, watcher, report, short)
        try:
            _prepare(definition, training, splits, watcher)
            if has_checkpoint:
                training.restore(whole)
                watcher.say(f"going on at step {training.step} of {training.steps}")
                for sentence in _changed_machine(run):
                    watcher.say(sentence)
            elif resumed and group.first:
                run.rewind(0)
            if group.first:
                run.write_json("recipe.json", run.plain())  # its data may lie elsewhere
                run.write_json("data.json", fingerprint)
            with distributed.explain_lost_process(group, f"saccade resume {run.folder}"):
                training.fit()
                if splits.final is not None and not run.read_json("final.json"):
                    _count_at_the_end(run, splits.final, group, watcher, report)
        finally:
            training.close()


def _count_at_the_end(
    run: Run, images: Any, group: Group, watcher: Watcher, report: Report | None
) -> None:
    """Evaluate the best model on the validation set, which no choice was based on before."""
    one = open_model(run.folder, group.device)
    loader = make.unaugmented(
        one.definition, one.test, images, one.task.net, group, run.recipe.loop.batch,
        make.workers(run.recipe.data, group), run.recipe.data.bad,
    )  # fmt: skip
    try:
        figures = count(one.task, loader, group, run.recipe.loop.precision).compute()
    finally:
        loader.close()
    if group.first:
        run.write_json("final.json", {"val": figures})
        for sentence in report(run) if report is not None else ():
            watcher.say(sentence)
    best = one.task.best
    watcher.say(
        f"on the {len(images)} validation images, seen once, the best model reaches "
        f"{formatted(best, figures[best])} {label_of(best)}; all figures before were of images "
        f"held out of the training set"
    )


def _prepare(
    definition: TaskDefinition, training: Training, splits: Splits, watcher: Watcher
) -> None:
    """Fit the baseline and make what the task needs, after all checks have passed."""
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
        run.write_json(file.name, figures)
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
    """Changes of the machine that make the last digits differ from those of an unbroken run."""
    then, now = run.read_json("environment.json"), environment()
    changes = [f"{k} {then[k]} -> {now[k]}" for k in ("torch", "threads", "processes", "device")
               if k in then and then[k] != now[k]]  # fmt: skip
    return [f"the last digits may differ from an unbroken run's: {', '.join(changes)}"] * bool(
        changes
    )


# -- a trained model ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its task, ready for pictures."""

    definition: TaskDefinition
    task: Task
    test: Any
    """The settings by which pictures are resized and cropped for it."""
    classes: list[str]
    notes: dict[str, Any]
    """What the task must know about its data, such as ids of classes."""
    settings: Any
    """Its task's group of the recipe."""

    def transform(self, test: Any = None) -> Any:
        """The preprocessing of a picture, by the model's own test settings or by these."""
        about = describe.timm_config(self.task.net)
        settings = self.test if test is None else test
        return self.definition.test_transform(settings, about["mean"], about["std"])


def open_model(
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


def ready(
    net: Any, device: torch.device | str = "cpu", notes: dict[str, Any] | None = None
) -> LoadedModel:
    """The network that `load` gave, with the task that its notes (or these) name."""
    notes = net.notes if notes is None else notes
    assert notes is not None
    classes, data = notes["classes"], notes.get("data", {})
    count = getattr(net, "num_classes", len(classes))
    if len(classes) != count:
        raise ValueError(
            f"the model has {count} classes and its notes name {len(classes)}; save it "
            f"again with one name for each"
        )
    try:
        definition, settings = tasks.of_notes(notes)
        task = definition.task(settings, net, tuple(classes), data).to(device).eval()
        test = read_group("test", {"kind": definition.test.__name__, **notes.get("test", {})})
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"the model's notes do not fit it ({error}); save it again") from error
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


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What was counted of a trained model over a set."""

    metric: Metric
    images: Any
    """The set, with labels in the order of the model's classes."""
    model: LoadedModel


def evaluate(model: str | Path, data: str | None = None, **options: Any) -> Metric:
    """Count a trained model's figures over a set; arguments are those of `evaluation`."""
    return evaluation(model, data, **options).metric


def evaluation(
    model: str | Path,
    data: str | None = None,
    *,
    split: str = "val",
    batch: int | None = None,
    tta: bool = False,
    device: str | None = None,
) -> Evaluation:
    """Evaluate a trained model on a data set, whose classes are matched by name.

    Args:
        model: a run's folder, a saved model, or the name of one that comes with saccade
        data: the images; if None, or if they are the run's own, those that the run held out
        split: "val", "train" for the images that the run learnt from, or "tune" for those that it
            chose its best model by, where these are not the validation set (`data.tune`)
        batch: images at once; if None, as many as the run evaluates, or else 64
        tta: look at several views of every image
        device: cpu or cuda; the best there is if None
    """
    with distributed.process_group(device) as group:
        one = open_model(model, group.device)
        definition, classes = one.definition, one.classes
        if tta:
            one = dataclasses.replace(one, task=definition.viewing(one.task))
        if data is None or _is_own(model, data):
            images = _part(images_of(Run.open(model)), split)
        elif split == "val":
            images = definition.every(data, classes)
        else:
            images = _part(definition.find(data, Data(), 0), split)
        warnings = tuple(getattr(images, "warnings", ()))
        images = definition.align(images, classes)
        if batch is None:
            is_run = (Path(model) / "recipe.json").is_file()
            batch = Run.open(model).recipe.loop.batch if is_run else AT_ONCE
        loader = make.unaugmented(
            definition, one.test, images, one.task.net, group, batch, make.workers(Data(), group)
        )
        metric = count(one.task, loader, group)
        metric.warnings = warnings
        return Evaluation(metric, images, one)


def _part(splits: Splits, split: str) -> Any:
    """The images that a split's name stands for."""
    if split == "train":
        return splits.train
    if split == "tune" and splits.final is None:
        raise ValueError(
            "eval: the run chose its best model by the validation set; leave out --split tune"
        )
    return splits.val if split == "tune" or splits.final is None else splits.final


def _is_own(model: str | Path, data: str) -> bool:
    """Whether these are the images of the run itself, of which it has learnt some."""
    return (Path(model) / "recipe.json").is_file() and Run.open(model).data == _absolute(data)


def _difference(now: list[str], then: tuple[str, ...]) -> str:
    removed, new = set(then) - set(now), set(now) - set(then)
    sentences = [f"{min(removed)!r} is gone"] if removed else []
    sentences += [f"{min(new)!r} is new"] if new else []
    return " and ".join(sentences) or "their order differs"
