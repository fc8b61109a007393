"""Commands that train models, evaluate them and report on runs.

`recipes`, `train`, `resume`, `eval`, `report`.
"""

import json as js
import math
import os
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from saccade.cli.command import Count, Device, File, Folder, ModelName, Side, Value
from saccade.cli.console import console, note, say, show, show_json, table
from saccade.files import write

RunFolder = Annotated[Path, Value("RUN", "models")]
RecipeName = Annotated[str, Value("RECIPE", "recipes")]
Logger = Annotated[
    Literal["tensorboard", "wandb", "mlflow"],
    Value("tensorboard|wandb|mlflow", bare="tensorboard"),
]
COMPARED = Path("compare.png")


def recipes(name: RecipeName | None = None, *, json: bool = False) -> None:
    """List the recipes, or write one out in full.

    Examples:
        saccade recipes
        saccade recipes quick

    Args:
        name: a recipe; all in a table if left out
        json: print JSON
    """
    from saccade.recipes import book
    from saccade.recipes.disk import to_plain

    if name is None:
        _list_recipes(json)
        return
    recipe = book.find(name)
    if json:
        show_json({"recipe": name, **to_plain(recipe)})
        return
    say(textwrap.dedent("    " + recipe.about).strip())
    plain = {group: fields for group, fields in to_plain(recipe).items() if group != "about"}
    for group, fields in plain.items():
        for key, value in fields.items():
            if key != "kind":
                say(f"  {group}.{key} = {js.dumps(value)}")
    note(f"change any: saccade train {name} --epochs 3 --set optim.weight_decay=0.1")


def _list_recipes(json: bool) -> None:
    from saccade.recipes import book

    rows = [
        {"recipe": name, "model": recipe.model.name, "epochs": recipe.schedule.epochs,
         "batch": recipe.loop.batch, "about": recipe.about.split("\n")[0]}
        for name, recipe in book.RECIPES.items()
    ]  # fmt: skip
    if json:
        show_json(rows)
        return
    last = "model: what for"
    grid = table("recipe", "epochs", last, right=("epochs",), prose=(last,))
    for row in rows:
        grid.add_row(row["recipe"], str(row["epochs"]), f"{row['model']}: {row['about']}")
    show(grid)
    note("saccade recipes NAME writes one out in full")


def train(
    recipe: RecipeName,
    *,
    data: Folder | None = None,
    model: ModelName | None = None,
    start: Annotated[str, Value("RUN", "models")] | None = None,
    epochs: Count | None = None,
    batch: Count | None = None,
    lr: float | None = None,
    size: Side | None = None,
    seed: Count | None = None,
    out: Folder | None = None,
    set: Annotated[list[str], Value("KEY=VALUE", "settings")] = [],  # noqa: B006  (never changed)
    device: Device | None = None,
    log: Logger | None = None,
    json: bool = False,
) -> None:
    """Train a model by a recipe on your images.

    A recipe says everything; options change a part of it. 'saccade recipes NAME' shows all that
    --set can change.

    Examples:
        saccade train quick
        saccade train scratch --data FOLDER --model qna_nano --epochs 30
        saccade train finetune --data FOLDER --start runs/scratch --lr 1e-4
        saccade train detect --data COCO --set task.score=0.1 optim.clip=1

    Args:
        recipe: one of 'saccade recipes'
        data: a folder of images (or tar shards, a CSV, ...), a COCO set, images and masks: as the
            recipe's task wants it; or mnist, fashion, solar, cifar10
        model: the network, instead of the recipe's (model.name)
        start: a run or a saved model whose backbone to begin with (model.start)
        epochs: how often each image is seen (schedule.epochs)
        batch: images a step (loop.batch)
        lr: peak learning rate (optim.lr)
        size: side of the images (augment.size and test.size; the short side for boxes and masks)
        seed: of all random numbers (loop.seed)
        out: the run's folder; runs/RECIPE and a number if left out
        set: any other part of the recipe, such as optim.weight_decay=0.1 loop.precision=bf16
        device: the best there is if left out
        log: write the course for TensorBoard into the run's folder, or for W&B or MLflow by
            their own packages; tensorboard if nothing follows
        json: print JSON at the end: the figures of every evaluation
    """
    from saccade.engine.plan import free_folder, plan

    recipe, recipe_plan, data = plan(recipe, data, set, model=model, start=start, epochs=epochs,
                                batch=batch, lr=lr, size=size, seed=seed)  # fmt: skip
    from saccade.engine import session
    from saccade.report.write import Reporter

    watch = watcher(log)
    folder = free_folder(recipe) if out is None else Path(out)
    times = recipe_plan.schedule
    lasting = "1 epoch" if times.epochs == 1 else f"{times.epochs} epochs"
    length = f"{times.iterations} steps" if times.iterations else lasting
    if _is_first():
        note(f"{recipe}: {recipe_plan.model.name} on {data}, {length} -> {folder}")
    with stoppable(folder):
        session.train(
            recipe_plan, data, folder, name=recipe, watch=watch, report=Reporter(), device=device
        )
        _print_result(folder, json)


def resume(
    run: RunFolder,
    *,
    data: Folder | None = None,
    force: bool = False,
    trust: bool = False,
    device: Device | None = None,
    log: Logger | None = None,
    json: bool = False,
) -> None:
    """Go on with a run that was stopped or killed.

    Examples:
        saccade resume runs/quick
        saccade resume runs/quick --data MOVED

    Args:
        run: its folder
        data: where its images lie now, if they were moved
        force: go on although images have changed, or recipe.json was edited
        trust: open and fetch what its recipe names beside the run, such as a teacher; for runs of
            your own
        device: the best there is if left out
        log: write the course for TensorBoard into the run's folder, or for W&B or MLflow by
            their own packages; tensorboard if nothing follows
        json: print JSON at the end: the figures of every evaluation
    """
    from saccade.engine import session
    from saccade.report.write import Reporter

    watch = watcher(log or ("tensorboard" if (run / "tensorboard").is_dir() else None))
    with stoppable(run):
        session.resume(
            run, data, force=force, trust=trust, watch=watch, report=Reporter(), device=device
        )
        _print_result(run, json)


def evaluate(
    model: ModelName,
    *,
    data: Folder | None = None,
    split: Literal["val", "train", "tune"] = "val",
    out: Folder | None = None,
    batch: Count | None = None,
    tta: bool = False,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Evaluate a trained model on a data set, and write down its mistakes.

    A folder eval in the run's own holds a page (confusion, precision over recall, the worst images
    beside the truth), the figures of each class, the images' ids, and boxes as COCO results.

    Examples:
        saccade eval runs/quick
        saccade eval linglo_nano --data PETS --json

    Args:
        model: a run's folder, a saved model, or the name of one that comes with saccade
        data: the images; those of the run if left out
        split: which part of them; tune: the images by which a run with data.tune chose its best
            model
        out: where the page and the files are written; RUN/eval if left out, or nowhere for a model
            that is no run
        batch: images at once; as many as the run evaluates if left out
        tta: look at every image six times: three sizes, each mirrored too (boxes and masks)
        json: print JSON
        device: the best there is if left out
    """
    from saccade.engine import session
    from saccade.models.saved import located
    from saccade.report import evaluation as report

    if located(model) is None:
        raise FileNotFoundError(f"eval: no run or model {model!r}; check the path")
    if data is None and not Path(model).is_dir():
        raise ValueError("eval: on which images? --data FOLDER")
    evaluation = session.evaluation(model, data, split=split, batch=batch, tta=tta, device=device)
    metric = evaluation.metric
    figures = metric.compute()
    if not _is_first():
        return
    folder = report.folder_of(model, data, split) if out is None else Path(out)
    name = f"{Path(model).resolve().name} on {split} images" + (f" of {data}" if data else "")
    try:
        paths = report.write(evaluation, folder, name).files if folder is not None else []
    except OSError as error:
        if out is not None:
            raise
        note(f"nothing is written ({error}); --out FOLDER says where else", "yellow")
        paths = []
    if json:
        show_json(
            {**_finite(figures), "unread": len(metric.unread), "warnings": metric.warnings,
             "files": [str(file) for file in paths]}
        )  # fmt: skip
        return
    for grid in _figures(figures), *_per_class(metric.tables()):
        show(grid)
    for sentence in metric.warnings:
        note(sentence, "yellow")
    for name, why in list(metric.unread.items())[:1]:
        note(f"{len(metric.unread)} images cannot be read and are left out: {name} ({why}), ...")
    if paths:
        say(f"look: {paths[0]}; beside it {', '.join(file.name for file in paths[1:])}")
    elif folder is None:
        note("--out FOLDER writes a page and files about it")


def _finite(figures: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _figures(figures: dict[str, float]) -> Any:
    """The figures as a table: one row, or one column where there are many."""
    cells = {k: f"{v:.0f}" if k == "images" else f"{v:.3f}" for k, v in figures.items()}
    if len(cells) <= 6:
        grid = table(*cells, right=tuple(cells))
        grid.add_row(*cells.values())
        return grid
    grid = table("figure", "value", right=("value",))
    for row in cells.items():
        grid.add_row(*row)
    return grid


def _per_class(tables: dict[str, Any]) -> list[Any]:
    """A table with a row for each class, if the metric has one."""
    rows = tables.get("per_class")
    if not rows:
        return []
    grid = table(*rows[0], right=tuple(name for name in rows[0] if name != "class"))
    for row in rows:
        grid.add_row(*(_cell(value) for value in row.values()))
    return [grid]


def _cell(value: Any) -> str:
    """A value of a table as text; a dash for a class that the set does not have."""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def report(
    runs: Annotated[list[str], Value("RUNS", "models")],
    *,
    out: File = COMPARED,
    json: bool = False,
) -> None:
    """Write a run's report again (table, curves, confusion, page), or compare several runs.

    Examples:
        saccade report runs/quick
        saccade report runs/quick "runs/scratch*" --out compare.png
        saccade report "runs/*" --out compare.html

    Args:
        runs: folders of runs, or patterns in quotes
        out: where several runs are shown side by side: a picture (.png), or a page (.html)
        json: print JSON
    """
    from saccade.report import comparison

    if out.suffix.lower() not in (".png", ".html"):
        raise ValueError(f"report: --out takes a name that ends in .png or .html, got {str(out)!r}")
    summaries, sentences = comparison.find_runs(runs)
    one = len(summaries) == 1
    if one and out != COMPARED:
        sentences = [*sentences, f"nothing is written to {out}: --out is for several runs"]
    plain, tables, more = _reported(summaries[0]) if one else _compared(summaries, out)
    if json:
        show_json({**plain, "notes": [*sentences, *more]})
        return
    for grid in tables:
        show(grid)
    for sentence in [*sentences, *more]:
        say(sentence)
    for file in plain["files"]:
        say(f"written: {file}")


def _reported(one: Any) -> tuple[dict[str, Any], list[Any], list[str]]:
    """The report of one run: as JSON, as tables, and in sentences."""
    from saccade.report import write as reports
    from saccade.tasks.figures import formatted, label_of

    try:
        paths = reports.write(one)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(
            f"report: {str(one.run.folder)!r} holds a table that saccade did not write "
            f"({type(error).__name__}); remove its tables.json, and try again"
        ) from error
    heads = ("epoch", *map(label_of, one.figures), "minutes")
    grid = table(*heads, right=heads)
    for line in one.lines:
        figures = (formatted(k, line["val"].get(k, math.nan), unit=False) for k in one.figures)
        style = "bold" if line is one.best else None
        grid.add_row(str(line["epoch"]), *figures, f"{line['seconds'] / 60:.1f}", style=style)
    return one.plain(paths.files), [grid], [*one.sentences(), *paths.sentences]


def _compared(summaries: list[Any], out: Path) -> tuple[dict[str, Any], list[Any], list[str]]:
    """The comparison of several runs: as JSON, as tables, and in sentences."""
    from saccade.report import comparison, plots
    from saccade.report import write as reports
    from saccade.report.page import compared

    groups, files, undrawn, picture = comparison.groups(summaries), [], [], None
    try:
        picture = plots.compare([group.curve() for group in groups], groups[0].figure)
    except ImportError:
        undrawn.append(reports.UNDRAWN)
    grid, notes = comparison.table(groups), [*comparison.beneath(groups), *undrawn]
    content = compared(grid, picture, notes) if out.suffix.lower() == ".html" else picture
    if content is not None:
        files.append(str(write(out, content)))
    plain = {
        "figure": groups[0].figure, "groups": [group.plain() for group in groups], "files": files,
    }  # fmt: skip
    return plain, [grid], notes


# -- around a run ---------------------------------------------------------------------------


def watcher(log: str | None):
    """What shows a run's progress: the screen, and the files or service that `log` names."""
    from saccade.engine.watch import Several
    from saccade.report.progress import Screen
    from saccade.report.tensorboard import Log
    from saccade.report.trackers import MLflow, Wandb

    loggers = {"tensorboard": Log, "wandb": Wandb, "mlflow": MLflow}
    others = [loggers[log]()] if log else []
    return lambda: Several(Screen(console(stderr=True)), *others)


def newest(command: str) -> Path:
    """The run in runs/ whose model was saved last, among those that a command can use."""
    from saccade import tasks
    from saccade.engine.run import Run

    models = sorted(Path("runs").glob("*/model.safetensors"), key=lambda p: -p.stat().st_mtime)
    for path in models:
        try:
            if tasks.of(Run.open(path.parent).recipe).command == command:
                return path.parent
        except (ValueError, OSError):  # no run of ours
            continue
    raise FileNotFoundError(f"{command}: with which model? --model RUN, or train one first")


def newest_or_own(command: str) -> str:
    """The newest run that a command can use, or else a model that comes with the package."""
    from saccade import tasks, weights

    try:
        return str(newest(command))
    except FileNotFoundError:
        for name in weights.NAMES:
            if tasks.of_notes(weights.header(name)["notes"])[0].command == command:
                note(f"no trained run in runs/: using {name}, which comes with saccade")
                return name
        raise


def _is_first() -> bool:
    """Whether this process prints: the only one, or the first of a job of several."""
    return os.environ.get("RANK", "0") == "0"


class stoppable:  # noqa: N801  (reads as a with-statement)
    """Turn what ends a run early into one sentence that says how to go on."""

    def __init__(self, folder: Path, command: str = ""):
        self.folder = folder
        self.command = command or f"saccade resume {folder}"

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        from saccade.engine.train import Stopped

        if isinstance(error, Stopped | KeyboardInterrupt):
            why = str(error) or "stopped at once"
            has_begun = any(self.folder.glob("**/recipe.json"))
            if _is_first():
                note(f"{why}; go on with: {self.command}" if has_begun else why)
            raise SystemExit(130) from None
        return False


def _print_result(folder: Path, json: bool = False) -> None:
    """Print a run's results, and the command that uses its model."""
    from saccade import tasks
    from saccade.engine.run import Run
    from saccade.report.summary import Summary

    run = Run.open(folder)
    if not run.lines() or not _is_first():
        return
    summary = Summary.of(run)
    if json:
        show_json(summary.plain([]))
        return
    for sentence in summary.sentences():
        say(sentence)
    for drawing in sorted(folder.glob("*.png")):
        if drawing.name != "curves.png":
            say(f"look: {folder / 'report.html'}, {drawing}")
    if command := tasks.of(run.recipe).command:
        say(f"next: saccade {command} PICTURE --model {folder}")
