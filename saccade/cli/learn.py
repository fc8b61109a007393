"""Commands that learn and use what was learnt.

`recipes`, `train`, `resume`, `eval`, `predict`, `report`.
"""

import json as js
import math
import os
import textwrap
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from saccade.cli.console import console
from saccade.models.saved import located
from saccade.recipes import book
from saccade.recipes.recipe import override
from saccade.report.summary import Summary
from saccade.tasks.figures import formatted, label_of


def recipes(name: str | None = None) -> None:
    """List the recipes, or write one out in full.

    Args:
        name: a recipe; all in a table if not given
    """
    if name is not None:
        from saccade.recipes.disk import to_plain

        recipe = book.find(name)
        console.print(textwrap.dedent("    " + recipe.about).strip(), highlight=False)
        plain = {k: v for k, v in to_plain(recipe).items() if k != "about"}
        for group, fields in plain.items():
            for key, value in fields.items():
                if key != "kind":
                    console.print(f"  {group}.{key} = {js.dumps(value)}", highlight=False)
        console.print(f"change any: saccade train {name} --set optim.lr=1e-3")
        return
    table = Table("recipe", "model", "epochs", "batch", "what for", box=None, pad_edge=False)
    for key, recipe in book.RECIPES.items():
        first = recipe.about.split("\n")[0]
        epochs, batch = recipe.schedule.epochs, recipe.loop.batch
        table.add_row(key, recipe.model.name, str(epochs), str(batch), first)
    console.print(table)


def train(
    recipe: str,
    data: str | None = None,
    out: Path | None = None,
    set: list[str] = [],  # noqa: B006  (the option's name; never changed)
    device: str | None = None,
    log: bool = False,
) -> None:
    """Train a model by a recipe on your images.

    Args:
        recipe: one of 'saccade recipes'
        data: a folder of images (or tar shards, a CSV, ...), a COCO set, images and masks: as the
            recipe's task wants it; or mnist, fashion, solar
        out: the run's folder; runs/RECIPE and a number if not given
        set: KEY=VALUE, such as model.name=qna_nano schedule.epochs=3
        device: cpu or cuda; the best there is if not given
        log: write scalars for TensorBoard into the run's folder
    """
    from saccade import tasks
    from saccade.engine import session
    from saccade.report.write import Reporter

    if recipe == "quick" and data == "solar":
        recipe = "quick_solar"
    chosen = override(book.find(recipe), set)
    if data is None:
        data = {"quick": "mnist", "quick_solar": "solar"}.get(recipe)
        if data is None:
            raise ValueError(
                f"train {recipe}: which images? --data FOLDER: {tasks.of(chosen).data_hint}"
            )
    if recipe == "finetune" and not chosen.model.start:
        raise ValueError(
            "train finetune: with which backbone? --set model.start=RUN; "
            "'saccade train scratch' begins without one"
        )
    watch = _watch(log)
    folder = out or _free(recipe)
    plan = chosen.schedule
    length = f"{plan.iterations} steps" if plan.iterations else f"{plan.epochs} epochs"
    _first(f"{recipe}: {chosen.model.name} on {data}, {length} -> {folder}")
    with _stoppable(folder):
        session.train(
            chosen, data, folder, name=recipe, watch=watch, report=Reporter(), device=device
        )
        _done(folder)


def resume(
    run: Path, data: str | None = None, device: str | None = None, log: bool = False
) -> None:
    """Go on with a run that was stopped or killed.

    Args:
        run: its folder
        data: where its images lie now, if they were moved
        device: cpu or cuda; the best there is if not given
        log: write scalars for TensorBoard into the run's folder
    """
    from saccade.engine import session
    from saccade.report.write import Reporter

    watch = _watch(log or (run / "tensorboard").is_dir())
    with _stoppable(run):
        session.resume(run, data, watch=watch, report=Reporter(), device=device)
        _done(run)


def evaluate(
    model: str,
    data: str | None = None,
    split: str = "val",
    json: bool = False,
    device: str | None = None,
) -> None:
    """Count a trained model's figures over a set.

    Args:
        model: a run's folder, a saved model, or the name of one that comes with saccade
        data: the images; those of the run if not given
        split: val or train
        json: print JSON
        device: cpu or cuda; the best there is if not given
    """
    from saccade.engine import session

    if split not in ("val", "train"):
        raise ValueError(f"eval: split is val or train, got {split!r}")
    if located(model) is None:
        raise FileNotFoundError(f"eval: no run or model {model!r}; check the path")
    if data is None and not Path(model).is_dir():
        raise ValueError("eval: on which images? --data FOLDER")
    metric = session.evaluate(model, data, split=split, device=device)
    figures = metric.compute()
    if not _is_first():
        return
    if json:
        print(js.dumps({**figures, "unread": len(metric.unread), "warnings": metric.warnings}))
        return
    for table in _figures(figures), *_per_class(metric.tables()):
        console.print(table)
    for sentence in metric.warnings:
        console.print(sentence, style="yellow", highlight=False, markup=False, soft_wrap=True)
    for name, why in list(metric.unread.items())[:1]:
        told = f"{len(metric.unread)} images cannot be read and are left out: {name} ({why}), ..."
        console.print(told, highlight=False, markup=False, soft_wrap=True)


def _figures(figures: dict[str, float]) -> Table:
    """In a row, or in a column where they are many."""
    shown = {k: f"{v:.0f}" if k == "images" else f"{v:.3f}" for k, v in figures.items()}
    table = Table(box=None, pad_edge=False)
    if len(shown) > 6:
        table.show_header = False
        table.add_column()
        table.add_column(justify="right")
        for row in shown.items():
            table.add_row(*row)
        return table
    for name in shown:
        table.add_column(name, justify="right")
    table.add_row(*shown.values())
    return table


def _per_class(tables: dict[str, Any]) -> list[Table]:
    """Where a metric counts for each class."""
    rows = tables.get("per_class")
    if not rows:
        return []
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "class" else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return [table]


def _cell(value: Any) -> str:
    """A class that the set does not have has no figure."""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def predict(
    files: list[str],
    model: str | None = None,
    top: int = 5,
    json: bool = False,
    device: str | None = None,
) -> None:
    """Name what is in pictures: the likeliest classes, with bars.

    Args:
        files: pictures, folders of pictures, or patterns such as "photos/*.jpg"
        model: a run's folder, a saved model, or the name of one that comes with saccade;
            the newest of runs/ if not given, or else linglo_nano, which knows cats and dogs
        top: how many classes of each
        json: print a JSON line a picture
        device: cpu or cuda; the best there is if not given
    """
    from saccade.infer.predict import guesses

    width, unread = 24, 0
    for file, found in guesses(files, model or str(_newest_or_own()), top, device):
        if isinstance(found, str):
            unread += 1
            said = js.dumps({"file": file, "error": found}) if json else f"{file}: {found}"
            style = None if json else "yellow"
            console.print(said, style=style, highlight=False, soft_wrap=True, markup=False)
        elif json:
            print(js.dumps({"file": file, "guesses": [g._asdict() for g in found]}))
        else:
            console.print(file, style="bold", highlight=False, markup=False, soft_wrap=True)
            widest = max(len(g.label) for g in found)
            for g in found:
                bar = "█" * round(width * g.share)
                console.print(
                    f"  {escape(f'{g.label:{widest}}')}  {100 * g.share:5.1f}%  [cyan]{bar}[/]",
                    highlight=False,
                )
    if unread:
        raise SystemExit(1)


def report(runs: list[str], out: Path = Path("compare.png"), json: bool = False) -> None:
    """Report a run anew (table, curves, confusion, page), or compare several.

    Args:
        runs: folders of runs, or patterns such as "runs/quick*"
        out: where several runs are drawn side by side
        json: print JSON
    """
    from saccade.report import comparison

    found, sentences = comparison.find_runs(runs)
    one = len(found) == 1
    plain, tables, more = _reported(found[0]) if one else _compared(found, out)
    if json:
        print(js.dumps({**plain, "notes": [*sentences, *more]}, allow_nan=False))
        return
    for table in tables:
        console.print(table)
    for sentence in [*sentences, *more]:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    for file in plain["files"]:
        console.print(f"written: {file}", highlight=False, markup=False, soft_wrap=True)


def _reported(one: Summary) -> tuple[dict[str, Any], list[Table], list[str]]:
    """One run: for JSON, as a table, and in sentences."""
    from saccade.report import write as reports

    written = reports.write(one)
    table = Table(box=None, pad_edge=False)
    for head in ("epoch", *map(label_of, one.figures), "minutes"):
        table.add_column(head, justify="right")
    for line in one.lines:
        figures = (formatted(k, line["val"].get(k, math.nan), unit=False) for k in one.figures)
        style = "bold" if line is one.best else None
        table.add_row(str(line["epoch"]), *figures, f"{line['seconds'] / 60:.1f}", style=style)
    return one.plain(written.files), [table], [*one.sentences(), *written.sentences]


def _compared(found: list[Summary], out: Path) -> tuple[dict[str, Any], list[Table], list[str]]:
    """Several runs, in the same three ways."""
    from saccade.report import comparison, plots
    from saccade.report import write as reports

    made, files, undrawn = comparison.groups(found), [], []
    try:
        out.write_bytes(plots.compare([group.curve() for group in made], made[0].figure))
        files.append(str(out))
    except ImportError:
        undrawn.append(reports.UNDRAWN)
    plain = {
        "figure": made[0].figure, "groups": [group.plain() for group in made], "files": files,
    }  # fmt: skip
    return plain, [comparison.table(made)], [*comparison.beneath(made), *undrawn]


# -- around a run ---------------------------------------------------------------------------


def _watch(log: bool):
    """How a run is watched: on the screen, and by TensorBoard if asked for."""
    from saccade.engine.watch import Several
    from saccade.report.progress import Screen
    from saccade.report.tensorboard import Log

    others = [Log()] if log else []
    return lambda: Several(Screen(console), *others)


def _free(recipe: str) -> Path:
    """runs/quick, runs/quick-2, ...: the first that is not taken.

    A process that torchrun has started again goes on with the last that is.
    """
    folder, taken, n = Path("runs") / recipe, None, 1
    while (folder / "steps.jsonl").exists():
        n += 1
        taken, folder = folder, Path("runs") / f"{recipe}-{n}"
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return taken if again and taken is not None else folder


def newest(verb: str) -> Path:
    """The run of runs/ that has learnt something last, of those that a command can use."""
    from saccade import tasks
    from saccade.engine.run import Run

    found = sorted(Path("runs").glob("*/model.safetensors"), key=lambda p: -p.stat().st_mtime)
    for path in found:
        try:
            if tasks.of(Run.open(path.parent).recipe).command == verb:
                return path.parent
        except (ValueError, OSError):  # no run of ours
            continue
    raise FileNotFoundError(f"{verb}: with which model? --model RUN, or train one first")


def _is_first() -> bool:
    """Whether this is the process that speaks, of a job of one or many."""
    return os.environ.get("RANK", "0") == "0"


def _newest_or_own() -> Path | str:
    """The newest classifier of runs/, or else one that comes with the package."""
    try:
        return newest("predict")
    except FileNotFoundError:
        return "linglo_nano"


def _first(sentence: str) -> None:
    """Said once, by the first process."""
    if _is_first():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


class _stoppable:  # noqa: N801  (reads as a with-statement)
    """Turn what ends a run early into one sentence that says how to go on."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        from saccade.engine.train import Stopped

        if isinstance(error, Stopped | KeyboardInterrupt):
            said = str(error) or "stopped at once"
            begun = (self.folder / "recipe.json").is_file()
            _first(f"{said}; go on with: saccade resume {self.folder}" if begun else said)
            raise SystemExit(130) from None
        return False


def _done(folder: Path) -> None:
    from saccade import tasks
    from saccade.engine.run import Run
    from saccade.report.summary import Summary

    run = Run.open(folder)
    if not run.lines():
        return
    for sentence in Summary.of(run).sentences():
        _first(sentence)
    for drawing in sorted(folder.glob("*.png")):
        if drawing.name != "curves.png":
            _first(f"look: {folder / 'report.html'}, {drawing}")
    if command := tasks.of(run.recipe).command:
        _first(f"next: saccade {command} PICTURE --model {folder}")
