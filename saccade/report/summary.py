"""Summarise a run in figures and sentences, for its pictures, its page and its tables.

The main figure of a task is the first it computes; larger is better. The run may have been killed:
a missing or damaged file counts as empty.
"""

import heapq
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from saccade.engine.run import Run
from saccade.recipes import book
from saccade.recipes.disk import from_plain, to_plain
from saccade.recipes.recipe import Recipe
from saccade.report.tables import Tables, is_number
from saccade.tasks.figures import formatted, label_of

Line = dict[str, Any]
POINTS = 4000  # of a curve that is drawn; more cannot be told apart


class Pair(NamedTuple):
    """One class taken for another: `times` of `of` images."""

    truth: str
    guess: str
    times: int
    of: int


@dataclass(frozen=True)
class Summary:
    """A run that has been evaluated at least once."""

    run: Run
    lines: list[Line]

    @classmethod
    def of(cls, run: Run | str | Path) -> "Summary":
        run = run if isinstance(run, Run) else Run.open(run)
        lines = [line for line in once(run.lines()) if _is_evaluation(line)]
        if not lines:
            every = run.recipe.loop.evaluate_every
            after = "the first epoch" if every == 1 else f"{every} epochs"
            raise ValueError(
                f"report: {str(run.folder)!r} has no evaluation yet; it is written after {after}"
            )
        return cls(run, lines)

    @property
    def figure(self) -> str:
        """The name of the main figure."""
        return next(iter(self.lines[-1]["val"]))

    @property
    def figures(self) -> list[str]:
        return list(self.lines[-1]["val"])

    @property
    def best(self) -> Line:
        return max(self.lines, key=lambda line: (_orderly(self.value(line)), -line["epoch"]))

    @property
    def last(self) -> Line:
        return self.lines[-1]

    @property
    def finished(self) -> bool:
        return self.last["epoch"] >= self.run.recipe.schedule.epochs

    @property
    def minutes(self) -> float:
        return self.last["seconds"] / 60

    def value(self, line: Line) -> float:
        return line["val"].get(self.figure, math.nan)

    @cached_property
    def steps(self) -> list[Line]:
        """The training loss and the learning rate by step; evenly spaced lines of a long run."""
        path = self.run.plain_file("steps.jsonl")
        return once(thinned(path)) if path else []

    @property
    def per_epoch(self) -> float:
        """Steps in an epoch; the last epoch may have fewer."""
        first = self.lines[0]
        return max(first["step"] / max(first["epoch"], 1), 1)

    @cached_property
    def tables(self) -> Tables:
        """The tables of the best evaluation."""
        return Tables(self.run.read_json("tables.json"))

    @property
    def environment(self) -> dict[str, Any]:
        return self.run.read_json("environment.json")

    @property
    def bad(self) -> dict[str, str]:
        """Images that could not be read, and why."""
        return self.run.read_json("bad.json")

    @property
    def baseline(self) -> tuple[str, float] | None:
        """The name and the figure of the baseline model, if the run has one."""
        figures = self.run.read_json("baseline.json")
        value: Any = figures.get(self.figure)
        if not is_number(value) or not math.isfinite(value):
            return None
        return str(figures.get("name", "baseline")), value

    @property
    def final(self) -> dict[str, float]:
        """Figures of the validation set, if the best model was chosen by other images."""
        figures = self.run.read_json("final.json").get("val")
        pairs = figures.items() if isinstance(figures, dict) else ()
        return {name: value for name, value in pairs if is_number(value)}

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The differences from the recipe of that name: {"optim.lr": (run, recipe)}."""
        recipe_of_name = book.RECIPES.get(self.run.name)
        changes = {} if recipe_of_name is None else differences(self.run.recipe, recipe_of_name)
        if self.run.recipe.schedule.iterations is not None:
            changes.pop("schedule.epochs", None)  # follows from the number of images
        return changes

    def sentences(self) -> list[str]:
        """The result, the baseline, and what went wrong, in sentences."""
        best, epochs = self.best, self.run.recipe.schedule.epochs
        sentences = [
            f"best: {formatted(self.figure, self.value(best))} {label_of(self.figure)} "
            f"at epoch {best['epoch']}"
        ]
        if self.run.recipe.data.tune and self.final:
            value = formatted(self.figure, self.final.get(self.figure, math.nan))
            sentences[0] += ", counted on images held out of the training set"
            sentences.append(
                f"final: {value} {label_of(self.figure)} of that model on the validation set"
            )
        if self.baseline is not None:
            name, value = self.baseline
            sentences.append(f"baseline: {formatted(self.figure, value)}, {name}")
        if self.bad:
            sentences.append(f"{len(self.bad)} images could not be read; report.html lists them")
        if not self.finished:
            sentences.append(f"not finished: epoch {self.last['epoch']} of {epochs}")
        return sentences

    def plain(self, files: Iterable[Path] = ()) -> dict[str, Any]:
        """The run as plain values for JSON."""
        return {
            "run": str(self.run.folder),
            "recipe": self.run.name,
            "model": self.run.recipe.model.name,
            "data": self.run.data,
            "parameters": self.parameters(),
            "figure": self.figure,
            "best": finite(self.best),
            "final": finite(self.final) or None,
            "evaluations": finite(self.lines),
            "finished": self.finished,
            "changed": {key: here for key, (here, _) in self.changed.items()},
            "bad": len(self.bad),
            "files": [str(file) for file in files],
        }

    def parameters(self) -> int | None:
        """How many parameters the network has; None if it can no longer be built."""
        return _parameters(json.dumps(to_plain(self.run.recipe)), len(self.run.classes))


# -- recipes --------------------------------------------------------------------------------


def flat(recipe: Recipe) -> dict[str, Any]:
    """A recipe by dotted keys as `--set` takes them, in plain values."""
    plain = json.loads(json.dumps(to_plain(recipe)))
    plain.pop("about")
    settings: dict[str, Any] = {}
    for group, fields in plain.items():
        for key, value in fields.items():
            if key == "kind" and group != "task":
                continue
            if isinstance(value, dict):
                settings |= {f"{group}.{key}.{k}": v for k, v in value.items()}
            else:
                settings[f"{group}.{key}"] = value
    return settings


def differences(a: Recipe, b: Recipe) -> dict[str, tuple[Any, Any]]:
    """{"optim.lr": (of a, of b)}; None where one has no such key."""
    left, right = flat(a), flat(b)
    keys = [*left, *(key for key in right if key not in left)]
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


# -- confusion ------------------------------------------------------------------------------


def confused(matrix: list[list[int]], classes: list[str], most: int = 5) -> list[Pair]:
    """The pairs of classes that are confused most often, by number of images and then by share."""
    totals = [sum(row) for row in matrix]
    cells = (
        (-times, totals[i], i, j)
        for i, row in enumerate(matrix)
        for j, times in enumerate(row)
        if times and i != j
    )
    return [
        Pair(classes[i], classes[j], -times, of) for times, of, i, j in heapq.nsmallest(most, cells)
    ]


def setting(value: Any) -> str:
    """A recipe's value as `--set` would take it."""
    return value if isinstance(value, str) else json.dumps(value)


# -- on disk --------------------------------------------------------------------------------


def _is_evaluation(line: Line) -> bool:
    """Whether a line is one that a run writes."""
    match line:
        case {"epoch": epoch, "step": _, "seconds": seconds, "rate": rate, "val": dict(figures)}:
            whole = type(epoch) is int and all(map(is_number, (epoch, seconds, rate)))
            return whole and bool(figures) and all(map(is_number, figures.values()))
    return False


def once(lines: list[Line]) -> list[Line]:
    """The lines in the order of their steps, of each step the last one written."""
    by_step = {line["step"]: line for line in lines if isinstance(line, dict) and "step" in line}
    return [by_step[step] for step in sorted(by_step)]


def thinned(path: Path, most: int = POINTS) -> list[Line]:
    """At most `most` lines of a file, evenly spaced, and the last one.

    A report is drawn while the run trains: its cost must not grow with the length of the run.
    """
    lines: list[Line] = []
    last, stride = None, 1
    try:
        with path.open() as file:
            for n, text in enumerate(file):
                last = json.loads(text)
                if n % stride == 0:
                    lines.append(last)
                if len(lines) > most:
                    lines, stride = lines[::2], 2 * stride
    except (OSError, ValueError, RecursionError):  # none yet, or a last line that is incomplete
        pass
    return lines if last is None or lines[-1:] == [last] else [*lines, last]


def finite(value: Any) -> Any:
    """Plain values for JSON, with null instead of NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _orderly(value: float) -> float:
    return -math.inf if math.isnan(value) else value


@lru_cache(maxsize=64)
def _parameters(recipe: str, classes: int) -> int | None:
    import torch

    from saccade.engine import make

    try:
        with torch.device("meta"):
            net = make.model(make.without_start(from_plain(json.loads(recipe))), classes)
    except Exception:  # timm's models fail in many ways, and a table can do without
        return None
    return sum(p.numel() for p in net.parameters())
