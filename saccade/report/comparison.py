"""Compare several runs in one table and one plot: their settings and their results.

Finished runs that differ in nothing but `loop.seed` are one row: mean and standard deviation. Runs
that began with other runs may begin each with one of another seed, or of their own model.
"""

import glob
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from saccade.engine.run import Run
from saccade.report.plots import Curve
from saccade.report.summary import Summary, finite, flat, setting
from saccade.tasks.figures import formatted, label_of

WIDE = 5  # settings that have a column of their own; more are listed below the table
APART = ("model.name", "loop.seed")  # shown in columns anyway


@dataclass(frozen=True)
class RunGroup:
    """Runs of one setting."""

    runs: tuple[Summary, ...]
    differs: dict[str, Any]
    """Its settings that differ between the groups, by dotted key."""
    label: str

    @property
    def figure(self) -> str:
        return self.runs[0].figure

    @property
    def model(self) -> str:
        return self.runs[0].run.recipe.model.name

    @property
    def finished(self) -> bool:
        return all(one.finished for one in self.runs)

    @property
    def seeds(self) -> list[int]:
        return [one.run.recipe.loop.seed for one in self.runs]

    @property
    def best(self) -> tuple[float, float]:
        return _spread([one.value(one.best) for one in self.runs])

    @property
    def last(self) -> tuple[float, float]:
        return _spread([one.value(one.last) for one in self.runs])

    @property
    def minutes(self) -> float:
        return statistics.fmean(one.minutes for one in self.runs)

    def curve(self) -> Curve:
        by_epoch = [{line["epoch"]: one.value(line) for line in one.lines} for one in self.runs]
        epochs = sorted(set.intersection(*(set(values) for values in by_epoch)))
        points = [_spread([values[epoch] for values in by_epoch]) for epoch in epochs]
        several = f" (mean of {len(self.runs)} ± sd)" if len(self.runs) > 1 else ""
        means, spreads = [mean for mean, _ in points], [sd for _, sd in points]
        return Curve(self.label + several, epochs, means, spreads)

    def plain(self) -> dict[str, Any]:
        """The group as plain values for JSON."""
        (best, best_sd), (last, last_sd) = self.best, self.last
        return {
            "model": self.model,
            "differs": self.differs,
            "parameters": self.runs[0].parameters(),
            "best": finite(best),
            "best_sd": finite(best_sd) if len(self.runs) > 1 else None,
            "last": finite(last),
            "last_sd": finite(last_sd) if len(self.runs) > 1 else None,
            "epochs": self.runs[0].last["epoch"],
            "finished": self.finished,
            "minutes": round(self.minutes, 2),
            "seeds": self.seeds,
            "runs": [str(one.run.folder) for one in self.runs],
        }


# -- which runs -----------------------------------------------------------------------------


def find_runs(words: Sequence[str]) -> tuple[list[Summary], list[str]]:
    """The runs that words on the command line stand for: runs, folders of runs, patterns.

    A run that was named itself must be usable; an unusable one in a folder or a pattern is left
    out, with a sentence.
    """
    summaries: dict[Path, Summary] = {}
    sentences: list[str] = []
    for word in words:
        folders = within(word)
        for folder in folders:
            try:
                summaries.setdefault(folder.resolve(), Summary.of(folder))
            except ValueError as error:
                if folders == [Path(word)]:
                    raise
                sentences.append(f"left out: {str(error).removeprefix('report: ')}")
    if not summaries:
        raise ValueError(f"report: no run to report; {sentences[0] if sentences else 'name one'}")
    return list(summaries.values()), sentences


def within(word: str) -> list[Path]:
    """The folders of runs that a word stands for."""
    path = Path(word)
    if (path / "recipe.json").is_file():
        return [path]
    if path.is_dir():
        folders = sorted(file.parent for file in path.rglob("recipe.json"))
        if not folders:
            raise FileNotFoundError(
                f"report: {word!r} holds no run; give the folder that 'saccade train' named"
            )
        return folders
    if glob.has_magic(word):
        matched = sorted(map(Path, glob.glob(word, recursive=True)))
        folders = [folder for folder in matched if (folder / "recipe.json").is_file()]
        if not folders:
            raise FileNotFoundError(f"report: no run matches {word!r}")
        return folders
    raise FileNotFoundError(f"report: no run {word!r}; 'ls runs' shows those of this folder")


# -- groups ---------------------------------------------------------------------------------


def groups(summaries: Sequence[Summary]) -> list[RunGroup]:
    """Runs of one task by setting, the best first."""
    first = summaries[0]
    for other in summaries:
        if other.figure != first.figure:
            raise ValueError(
                f"report: {str(first.run.folder)!r} is judged by {label_of(first.figure)} and "
                f"{str(other.run.folder)!r} by {label_of(other.figure)}: runs of different tasks "
                f"do not compare; report them apart"
            )
    alike: dict[str, list[Summary]] = {}
    for one in summaries:
        own = "" if one.finished else str(one.run.folder)
        alike.setdefault(json.dumps([_decides(one.run), one.run.classes, own]), []).append(one)
    settings = [_decides(members[0].run) for members in alike.values()]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    apart = [k for k in keys if len({json.dumps(setting.get(k)) for setting in settings}) > 1]
    apart = [key for key in apart if key not in APART]
    run_groups = []
    for members, decided in zip(alike.values(), settings, strict=True):
        differs = {key: decided.get(key) for key in apart}
        run_groups.append(RunGroup(tuple(members), differs, _label(members, differs)))
    return sorted(run_groups, key=lambda group: _descending(group.best[0]))


def _decides(run: Run) -> dict[str, Any]:
    """All settings that decide a run's result, except the seed."""
    settings = {k: v for k, v in flat(run.recipe).items() if k != "loop.seed"}
    if (Path(settings["model.start"] or "-") / "recipe.json").is_file():
        settings["model.start"] = _setting_of(Run.open(settings["model.start"]))
    return {"data": run.data, **settings}


def _setting_of(source: Run) -> str:
    """A short name for the recipe and data of a run whose weights other runs start from."""
    decided = {k: v for k, v in _decides(source).items() if k != "model.name"}
    digest = hashlib.sha256(json.dumps(decided).encode()).hexdigest()
    return f"{source.name} of {Path(source.data).name} #{digest[:4]}"


def _label(members: list[Summary], differs: dict[str, Any]) -> str:
    run = members[0].run
    words = [f"{key}={setting(value)}" for key, value in differs.items()]
    if len(words) > WIDE:
        words = [run.folder.name] if members[0].finished else []
    unfinished = [] if members[0].finished else [f"{run.folder.name}, not finished"]
    return ", ".join([run.recipe.model.name, *words, *unfinished])


# -- as a table -----------------------------------------------------------------------------


def table(groups: Sequence[RunGroup]) -> Table:
    """A row a group; settings that differ have columns if they are few.

    The last figure has a column if it is not the best.
    """
    keys = list(groups[0].differs)
    columns = keys if len(keys) <= WIDE else []
    name = label_of(groups[0].figure)
    shape = Table(box=None, pad_edge=False)
    for head in ("run", "model"):
        shape.add_column(head, no_wrap=True)
    for key in columns:
        shape.add_column(key)
    sank = any(group.last != group.best for group in groups)
    last = [f"last {name}"] if sank else []
    for head in ("params M", f"best {name}", *last, "epochs", "minutes", "seeds"):
        shape.add_column(head, justify="right", no_wrap=head != "seeds")
    for group, run in zip(groups, names(groups), strict=True):
        count = group.runs[0].parameters()
        epochs_trained, epochs_planned = (
            group.runs[0].last["epoch"],
            group.runs[0].run.recipe.schedule.epochs,
        )
        cells = [
            run,
            group.model,
            *(setting(group.differs[key]) for key in columns),
            f"{count / 1e6:.2f}" if count is not None else "",
            mean(group.figure, *group.best, len(group.runs)),
            *([formatted(group.figure, group.last[0])] if sank else []),
            str(epochs_trained) if group.finished else f"{epochs_trained} of {epochs_planned}",
            f"{group.minutes:.1f}",
            " ".join(map(str, group.seeds)),
        ]
        shape.add_row(*map(Text, cells))
    return shape


def names(groups: Sequence[RunGroup]) -> list[str]:
    """The name of each group: its runs' folders, with full paths where two would be equal."""
    folders = [one.run.folder for group in groups for one in group.runs]
    alike = len({folder.name for folder in folders}) < len(folders)
    return [
        _folded([str(one.run.folder) if alike else one.run.folder.name for one in group.runs])
        for group in groups
    ]


def _folded(names: Sequence[str]) -> str:
    """`nano-{0,1,2}` for nano-0, nano-1 and nano-2."""
    few, many = min(names), max(names)  # what these begin with alike, all do
    common = few[: next((i for i, c in enumerate(few) if c != many[i]), len(few))]
    if len(names) < 2 or not common:
        return " ".join(names)
    return f"{common}{{{','.join(name.removeprefix(common) for name in names)}}}"


def beneath(groups: Sequence[RunGroup]) -> list[str]:
    """Sentences below the table: settings that have no column, and reasons to compare with care."""
    sentences = []
    if len(groups[0].differs) > WIDE:
        for group, run in zip(groups, names(groups), strict=True):
            differs = ", ".join(f"{k}={setting(v)}" for k, v in group.differs.items())
            sentences.append(f"{run}: {differs}")
    if len({group.runs[0].run.classes for group in groups}) > 1 or "data" in groups[0].differs:
        sentences.append("these runs saw different data: their figures do not compare")
    if any(len(set(group.seeds)) < len(group.seeds) for group in groups):
        sentences.append("some runs share a seed: their spread says nothing")
    if not all(group.finished for group in groups):
        sentences.append("a run that is not finished stands by itself")
    return sentences


def mean(figure: str, value: float, sd: float, n: int) -> str:
    """`96.12% ± 0.30 (3)`."""
    return formatted(figure, value) + (f" ± {sd:.2f} ({n})" if n > 1 else "")


def _spread(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value
