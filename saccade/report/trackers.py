"""A run in Weights & Biases or MLflow, through their own packages: `--log wandb`, `--log mlflow`.

    train/loss, train/TERM, train/rate   a point every few steps, as TensorBoard gets
    val/FIGURE                           each evaluation
    pictures                             of the best evaluation so far: those of the report

Where results go, and whether they leave the machine, is for these packages' own settings to say
(WANDB_MODE=offline, MLFLOW_TRACKING_URI). A run that goes on writes on under its number there,
which RUN/wandb.json or RUN/mlflow.json keeps.
"""

import re
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

from PIL import Image

from saccade.engine.run import Run
from saccade.report.tables import Tables, jpeg_image
from saccade.report.tensorboard import POINTS

PROJECT = "saccade"
NUMBER = re.compile(r"[A-Za-z0-9_-]{1,64}")
MOST = 12  # pictures of a kind


class Service(ABC):
    """What both have in common: which points are written, and the run's number there."""

    name: str

    def __init__(self) -> None:
        self.run: Run | None = None
        self.every = 1

    def began(self, run: Run, step: int, steps: int) -> None:
        self.every = max(steps // run.recipe.schedule.epochs // POINTS, 1)
        number = str(run.read_json(f"{self.name}.json").get("id", ""))
        number = self.open(run, number if NUMBER.fullmatch(number) else None)
        run.write_json(f"{self.name}.json", {"id": number})
        self.run = run

    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None:
        if self.run is not None and (step - 1) % self.every == 0:
            parts = {f"train/{name}": value for name, value in terms.items() if len(terms) > 1}
            self.points({"train/loss": sum(terms.values()), **parts, "train/rate": rate}, step)

    def evaluated(self, line: dict[str, Any], best: bool) -> None:
        if self.run is None:
            return
        self.points({f"val/{name}": value for name, value in line["val"].items()}, line["step"])
        if best:
            for title, rows in Tables(self.run.read_json("tables.json")).examples.items():
                photos = [(jpeg_image(jpeg), caption) for caption, jpeg in rows[:MOST]]
                if photos:
                    self.pictures(title.partition(":")[0], photos, line["step"])

    def say(self, sentence: str) -> None:
        """Sentences are for the screen."""
        return

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.run is not None:
            self.close(kind is None)

    @abstractmethod
    def open(self, run: Run, number: str | None) -> str:
        """Begin, or go on under a number; gives the number."""

    @abstractmethod
    def points(self, values: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def pictures(self, title: str, photos: list[tuple[Image.Image, str]], step: int) -> None: ...

    @abstractmethod
    def close(self, whole: bool) -> None: ...


class Wandb(Service):
    """Weights & Biases."""

    name = "wandb"

    def __init__(self) -> None:
        super().__init__()
        self.package = package("wandb")

    def open(self, run: Run, number: str | None) -> str:
        self.there = self.package.init(
            project=PROJECT, name=run.folder.name, dir=str(run.folder), id=number, resume="allow",
            config=run.plain()["recipe"],
        )  # fmt: skip
        return str(self.there.id)

    def points(self, values: dict[str, float], step: int) -> None:
        self.there.log(values, step=step)

    def pictures(self, title: str, photos: list[tuple[Image.Image, str]], step: int) -> None:
        rows = [self.package.Image(photo, caption=caption) for photo, caption in photos]
        self.there.log({title: rows}, step=step)

    def close(self, whole: bool) -> None:
        self.there.finish(exit_code=0 if whole else 1)


class MLflow(Service):
    """MLflow."""

    name = "mlflow"

    def __init__(self) -> None:
        super().__init__()
        self.package = package("mlflow")

    def open(self, run: Run, number: str | None) -> str:
        self.package.set_experiment(PROJECT)
        there = self.package.start_run(run_id=number, run_name=run.folder.name)
        if number is None:
            words = flat(run.plain()["recipe"])
            self.package.log_params({key: str(value)[:500] for key, value in words.items()})
        return str(there.info.run_id)

    def points(self, values: dict[str, float], step: int) -> None:
        self.package.log_metrics(values, step=step)

    def pictures(self, title: str, photos: list[tuple[Image.Image, str]], step: int) -> None:
        folder = re.sub(r"\W+", "_", title).strip("_") or "pictures"
        for n, (photo, _) in enumerate(photos):
            self.package.log_image(photo, artifact_file=f"{folder}/step{step}-{n}.jpg")

    def close(self, whole: bool) -> None:
        self.package.end_run("FINISHED" if whole else "KILLED")


def package(name: str) -> Any:
    """The package of that name, asked for only here."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"log: {name} is not installed ({error}); pip install 'saccade[{name}]'"
        ) from error


def flat(plain: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    rows: dict[str, Any] = {}
    for key, value in plain.items():
        rows |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return rows
