"""The results of a study's runs, and the comparison of its rows.

Rows are trained with the same seeds: the same order of images, shifts and mirrors. A row is
compared with the base row seed by seed:

    d_s = row_s - base_s,   mean d +- t sd(d) / sqrt(n)      95%, Student's t of n - 1

and the paper's order holds ("yes") where that interval lies on the paper's side of zero, does not
("no") where it lies on the other side, and is undecided in between.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saccade.models import zoo
from saccade.recipes.disk import to_plain
from saccade.recipes.recipe import Recipe
from saccade.report.summary import Summary
from saccade.report.tables import is_number
from saccade.study.grid import Grid, GridRow

FOLDER = Path(__file__).parent / "results"
# Student's t for an interval of 95%, by degrees of freedom; beyond, the normal distribution's.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL = 1.960


@dataclass(frozen=True)
class SeedResult:
    """One run at the end of its last epoch."""

    value: float
    curve: tuple[tuple[int, float], ...]
    """The figure after each evaluated epoch."""
    cpu_seconds: float

    @classmethod
    def of(cls, summary: Summary, figure: str) -> "SeedResult":
        if any(figure not in line["val"] for line in summary.lines):
            raise ValueError(f"study: {str(summary.run.folder)!r} counted no {figure!r}; remove it")
        curve = tuple((line["epoch"], line["val"][figure]) for line in summary.lines)
        last = summary.last
        cpu: Any = last.get("cpu_seconds")
        return cls(last["val"][figure], curve, cpu if is_number(cpu) else last["seconds"])


@dataclass(frozen=True)
class SettingResult:
    """All runs of one setting."""

    parameters: int | None
    seeds: dict[int, SeedResult]
    recipe: str = ""
    """The `fingerprint` of what it was trained by."""

    @property
    def mean(self) -> float:
        return statistics.fmean(one.value for one in self.seeds.values())

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; not a number for one."""
        values = [one.value for one in self.seeds.values()]
        return statistics.stdev(values) if len(values) > 1 else math.nan

    @property
    def cpu_minutes(self) -> float:
        return statistics.fmean(one.cpu_seconds for one in self.seeds.values()) / 60


@dataclass(frozen=True)
class StudyResult:
    """The results of all settings of a study."""

    figure: str
    data: str
    machine: str
    settings: dict[str, SettingResult] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return {
            "figure": self.figure, "data": self.data, "machine": self.machine,
            "settings": {
                key: {
                    "parameters": one.parameters,
                    "recipe": one.recipe,
                    "seeds": {
                        str(seed): {
                            "value": run.value, "cpu_seconds": round(run.cpu_seconds, 1),
                            "curve": [[epoch, round(value, 4)] for epoch, value in run.curve],
                        }
                        for seed, run in sorted(one.seeds.items())
                    },
                }
                for key, one in self.settings.items()
            },
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "StudyResult":
        settings = {
            key: SettingResult(
                one["parameters"],
                {
                    int(seed): SeedResult(
                        run["value"],
                        tuple((epoch, value) for epoch, value in run["curve"]),
                        run["cpu_seconds"],
                    )
                    for seed, run in one["seeds"].items()
                },
                one.get("recipe", ""),
            )
            for key, one in plain["settings"].items()
        }
        return cls(plain["figure"], plain["data"], plain["machine"], settings)


def fingerprint(recipe: Recipe) -> str:
    """What a recipe trains, but for its description and seed, in 16 hex digits."""
    plain = to_plain(recipe)
    del plain["about"], plain["loop"]["seed"]
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shipped(study: str) -> StudyResult | None:
    """What the study came to that is kept in the package; None if it has not been run."""
    path = FOLDER / f"{study}.json"
    return StudyResult.from_plain(json.loads(path.read_text())) if path.is_file() else None


# -- comparing ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A row against the base row, over the seeds that both have."""

    mean: float
    reach: float
    """Half of the interval of 95%; infinite for one seed."""
    seeds: int

    def verdict(self, expected: float | None) -> str:
        """Whether the paper's difference has the same sign: yes, no, undecided; or "" if none."""
        if not expected:
            return ""
        if abs(self.mean) <= self.reach:
            return "undecided"
        return "yes" if (self.mean > 0) == (expected > 0) else "no"


def difference(row: SettingResult, base: SettingResult) -> Difference | None:
    """None where no seed was trained of both."""
    both = sorted(row.seeds.keys() & base.seeds.keys())
    if not both:
        return None
    values = [row.seeds[seed].value - base.seeds[seed].value for seed in both]
    return Difference(statistics.fmean(values), interval(values), len(values))


def interval(values: Sequence[float]) -> float:
    """Half of the interval of 95% for the mean."""
    n = len(values)
    if n < 2:
        return math.inf
    t = T[n - 2] if n - 2 < len(T) else NORMAL
    return t * statistics.stdev(values) / math.sqrt(n)


def printed(grid: Grid, row: GridRow) -> float | None:
    """The paper's number for a row, of the first variant that has one; None if it prints none."""
    for variant, what in row.cells:
        for claim in zoo.claims(variant):
            if (claim.where, claim.what) == (grid.where, what):
                return claim.number
        for claim in zoo.claims(variant):  # printed in another table, too
            if claim.what == what:
                return claim.number
    return None


def measured(name: str, where: str, what: str) -> tuple[str, SettingResult] | None:
    """The study and the result that speak to a claim about a variant, if any."""
    from saccade.study.book import STUDIES

    for study in STUDIES.values():
        for grid in study.grids:
            for row in grid.rows:
                if (name, what) in row.cells and where.startswith(grid.where):
                    result = shipped(study.name)
                    if result is not None and row.key in result.settings:
                        return study.name, result.settings[row.key]
    return None
