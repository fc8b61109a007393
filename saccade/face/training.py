"""Train from Python: `saccade.train`, and the run that it gives.

run = saccade.train("finetune", data="FOLDER", start="linglo_nano", epochs=10)
run.best                     figures of the best evaluation, by name
run.metrics                  those of all, a dict each
run.figure("curves")         a picture; in a notebook the run shows it by itself
run.load()                   its best model, ready to predict
"""

import base64
import io
import math
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from saccade.engine import session
from saccade.engine.plan import free_folder, plan, words_of
from saccade.engine.run import Run
from saccade.engine.watch import Silent
from saccade.models.saved import load
from saccade.recipes.recipe import Recipe
from saccade.report.summary import Summary
from saccade.report.write import Reporter, write
from saccade.tasks.figures import formatted, label_of


class TrainedRun:
    """A run in its folder, for a notebook or a script: figures, pictures, and its best model."""

    def __init__(self, folder: str | Path):
        """
        Args:
            folder: a run's, of this process or an earlier one
        """
        self.run = Run.open(folder)

    @property
    def folder(self) -> Path:
        """The run's folder, which `saccade` commands take."""
        return self.run.folder

    @property
    def summary(self) -> Summary:
        return Summary.of(self.run)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The figures of every evaluation, with epoch, step, seconds and learning rate."""
        keys = ("epoch", "step", "seconds", "rate")
        return [
            {**{key: line[key] for key in keys if key in line}, **line["val"]}
            for line in self.summary.lines
        ]

    @property
    def best(self) -> dict[str, float]:
        """The figures of the model that was saved: the best evaluation's."""
        line = self.summary.best
        return {"epoch": line["epoch"], **line["val"]}

    @property
    def classes(self) -> tuple[str, ...]:
        return self.run.classes

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def load(self, **overrides: Any) -> Any:
        """Its best model, as `saccade.load` gives it."""
        return load(self.folder, **overrides)

    def figure(self, name: str = "curves") -> Image.Image:
        """One of its pictures, drawn again: "curves", "confusion", ..."""
        write(self.summary)
        path = self.folder / f"{name}.png"
        if not path.is_file():
            pictures = sorted(one.stem for one in self.folder.glob("*.png"))
            raise ValueError(f"figure: the run has no picture {name!r}, but {', '.join(pictures)}")
        with Image.open(path) as picture:
            return picture.copy()

    def report(self) -> Path:
        """Write its page again; one file for a browser."""
        return write(self.summary).files[0]

    def resume(self, **options: Any) -> "TrainedRun":
        """Go on with it, if it was stopped; options as `saccade.engine.session.resume` has them."""
        session.resume(self.folder, watch=_watch(True), report=Reporter(), **options)
        return TrainedRun(self.folder)

    def __repr__(self) -> str:
        summary = self.summary
        name, value = summary.figure, summary.value(summary.best)
        return (
            f"TrainedRun({str(self.folder)!r}: {self.run.recipe.model.name}, "
            f"{formatted(name, value)} {label_of(name)} at epoch {summary.best['epoch']})"
        )

    def _repr_html_(self) -> str:
        summary = self.summary
        heads = ["epoch", *map(label_of, summary.figures)]
        rows = [
            [str(line["epoch"])]
            + [formatted(k, line["val"].get(k, math.nan), unit=False) for k in summary.figures]
            for line in summary.lines[-10:]
        ]
        top = "".join(f"<th>{escape(head)}</th>" for head in heads)
        body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
        drawing = ""
        try:
            stream = io.BytesIO()
            self.figure("curves").save(stream, "PNG")
            png = base64.b64encode(stream.getvalue()).decode()
            drawing = f'<img alt="curves" style="max-width:40em" src="data:image/png;base64,{png}">'
        except (ImportError, ValueError):
            pass  # without matplotlib there are no pictures
        table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{escape(repr(self))}</p>{table}{drawing}"


def train(
    recipe: str | Recipe,
    data: str | Path | None = None,
    *,
    model: str | None = None,
    start: str | Path | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    size: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    progress: bool = True,
) -> TrainedRun:
    """Train a model by a recipe on your images, as `saccade train` does.

        run = saccade.train("finetune", data="FOLDER", start="linglo_nano", epochs=10)

    Args:
        recipe: one of `saccade recipes` by name, or a `saccade.recipes.recipe.Recipe`
        data: a folder of class folders, or what the recipe's task wants; or mnist, fashion, solar,
            cifar10; what the recipe is made for if None
        model: the network instead of the recipe's, of saccade or timm
        start: weights to begin with: a run, a saved model, or the name of one in the package
        epochs: how often each image is seen
        batch: images a step
        lr: peak learning rate
        size: side of the images
        seed: of all random numbers
        out: the run's folder; runs/RECIPE and a number if None
        settings: any other part of the recipe, such as {"optim.weight_decay": 0.1}
        device: cpu or cuda; the best there is if None
        progress: whether to show a progress bar and a table

    Returns:
        the run, with figures, pictures, and its best model
    """
    name, full_recipe, where = plan(
        recipe, None if data is None else str(data), words_of(settings or {}), model=model,
        start=None if start is None else str(start), epochs=epochs, batch=batch, lr=lr, size=size,
        seed=seed,
    )  # fmt: skip
    folder = free_folder(name) if out is None else Path(out)
    session.train(
        full_recipe,
        where,
        folder,
        name=name,
        watch=_watch(progress),
        report=Reporter(),
        device=device,
    )
    return TrainedRun(folder)


def _watch(progress: bool) -> Any:
    if not progress:
        return lambda: nullcontext(Silent())
    from rich.console import Console

    from saccade.report.progress import Screen

    return lambda: Screen(Console(file=sys.stderr, soft_wrap=False))
