"""A study's page: a table, a verdict and curves for every grid, as Markdown and PNG."""

import math
from pathlib import Path
from typing import Any

from saccade import files
from saccade.report.plots import Curve, compare
from saccade.study.grid import Grid, GridRow, Study, slug
from saccade.study.result import Difference, SettingResult, StudyResult, difference, printed
from saccade.tasks.figures import formatted, label_of

UNDRAWN = "no curves: pip install 'saccade[viz]'"
ORDERS = {0: "", 1: "higher", -1: "lower"}
HOLDS = """\
The base row is the first. `difference` is the mean over the seeds of row minus base, with its
interval of 95% (paired, Student's t). `holds`: whether the row lies on the paper's side of the
base, "yes" or "no" where the interval leaves out zero, else "undecided". Figures are of the last
epoch; nothing is chosen by the test pictures."""


def write(study: Study, result: StudyResult, folder: Path) -> list[Path]:
    """Write NAME.md and a picture a grid into a folder; gives the files."""
    pictures: dict[str, str] = {}
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for grid in study.grids:
        lines = curves(grid, result)
        if not lines:
            continue
        try:
            picture = compare(lines, result.figure)
        except ImportError:
            continue
        name = f"{study.name}-{slug(grid.where)}.png"
        paths.append(files.write(folder / name, picture))
        pictures[grid.where] = name
    text = markdown(study, result, pictures)
    return [files.write(folder / f"{study.name}.md", text), *paths]


def markdown(study: Study, result: StudyResult, pictures: dict[str, str]) -> str:
    """The page's text."""
    settings, seeds = (
        study.settings(),
        sorted({s for r in result.settings.values() for s in r.seeds}),
    )
    runs = sum(len(one.seeds) for one in result.settings.values())
    hours = (
        sum(r.cpu_seconds for one in result.settings.values() for r in one.seeds.values()) / 3600
    )
    recipe = study.recipe
    parts = [
        f"# The study `{study.name}`",
        f"{study.about} Small scale: what holds here need not hold on ImageNet, nor the reverse.",
        f"```bash\nsaccade study {study.name}\n```",
        f"`{recipe.model.name}`, {recipe.schedule.epochs} epochs of `{result.data}`"
        + (f", of which {recipe.data.share:.0%} is learnt from" if recipe.data.share < 1 else "")
        + f"; seeds {', '.join(map(str, seeds)) or 'none yet'}, the same for all rows; "
        f"{len(result.settings)} of {len(settings)} settings, {runs} runs, {hours:.1f} hours of "
        f"one core ({result.machine}).",
        HOLDS,
    ]
    for grid in study.grids:
        parts.append(f"## {grid.where}: {grid.asks}")
        parts.append(table(grid, result))
        if grid.note:
            parts.append(grid.note)
        if grid.where in pictures:
            parts.append(f"![{grid.where}: curves]({pictures[grid.where]})")
    return "\n\n".join(parts) + "\n"


def table(grid: Grid, result: StudyResult) -> str:
    """A grid as a Markdown table."""
    name = label_of(result.figure)
    paper = any(row.order or printed(grid, row) is not None for row in grid.rows)
    heads = ["", "parameters", f"{name} ± sd", "difference", *(["paper", "holds"] if paper else [])]
    heads.append("minutes")
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in cells(grid, result):
        ours = [row["label"], row["parameters"], row["mean"], row["difference"]]
        theirs = [row["paper"], row["holds"]] if paper else []
        rows.append([*ours, *theirs, row["minutes"]])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def cells(grid: Grid, result: StudyResult) -> list[dict[str, str]]:
    """A grid's rows as text, for a page or a screen."""
    base, expected = grid.rows[0], printed(grid, grid.rows[0])
    rows = []
    for row in grid.rows:
        one, number = result.settings.get(row.key), printed(grid, row)
        gap = row.order if number is None or expected is None else number - expected
        against = _against(row, base, result)
        rows.append(
            {
                "label": row.label,
                "parameters": f"{one.parameters:,}" if one and one.parameters else "",
                "mean": _mean(result.figure, one),
                "difference": _difference(result.figure, against),
                "paper": ORDERS[row.order] if number is None else f"{number:g}",
                "holds": against.verdict(gap) if against else "",
                "minutes": f"{one.cpu_minutes:.1f}" if one else "",
            }
        )
    return rows


def curves(grid: Grid, result: StudyResult) -> list[Curve]:
    """A line for each row that has been trained: the mean of its seeds."""
    lines = []
    for row in grid.rows:
        one = result.settings.get(row.key)
        if one is None:
            continue
        by_epoch = [dict(run.curve) for run in one.seeds.values()]
        epochs = sorted(set.intersection(*(set(values) for values in by_epoch)))
        columns = [[values[epoch] for values in by_epoch] for epoch in epochs]
        means = [sum(column) / len(column) for column in columns]
        spreads = [_spread(column) for column in columns]
        lines.append(Curve(row.label, epochs, means, spreads))
    return lines


def _against(row: GridRow, base: GridRow, result: StudyResult) -> Difference | None:
    both = result.settings.get(row.key), result.settings.get(base.key)
    return None if row is base or None in both else difference(*_present(both))


def _present(both: Any) -> tuple[SettingResult, SettingResult]:
    return both[0], both[1]


def _mean(figure: str, one: SettingResult | None) -> str:
    if one is None:
        return "not run"
    spread = "" if math.isnan(one.spread) else f" ± {one.spread:.2f}"
    return f"{formatted(figure, one.mean, unit=False)}{spread} ({len(one.seeds)})"


def _difference(figure: str, against: Difference | None) -> str:
    if against is None:
        return ""
    reach = (
        "" if math.isinf(against.reach) else f" ± {formatted(figure, against.reach, unit=False)}"
    )
    return f"{against.mean:+.2f}{reach}"


def _spread(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))
