"""The classes that declare a study.

    Study   a paper: grids, the recipe that all rows share, and seeds
    Grid    a table of the paper: rows that differ in one thing, the first of which is the base
    GridRow what is changed of the recipe, and the cells of the paper that it speaks to

Rows of several grids that change the same are one training.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from saccade.recipes.recipe import Recipe, change

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class GridRow:
    """One line of a table."""

    label: str
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the recipe, by dotted keys; keys of model.options too."""
    cells: tuple[tuple[str, str], ...] = ()
    """Variants and what of them the paper prints: ("linglo_b0", "top-1 at 100 epochs")."""
    order: int = 0
    """Where the paper prints no number: -1 if it has this row below the base, 1 if above."""

    @property
    def key(self) -> str:
        """A name for the setting, for folders and files."""
        if not self.changes:
            return "base"
        parts = (f"{name.rpartition('.')[2]}={_short(v)}" for name, v in self.changes.items())
        return ",".join(parts)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of the paper."""

    where: str
    """As claims name it: "Table 5"."""
    asks: str
    """The question in one sentence."""
    rows: tuple[GridRow, ...]
    note: str = ""
    """What is different from the paper's table, and why."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A paper's grids, which share a recipe."""

    name: str
    """`saccade study NAME`."""
    paper: str
    """The paper's word."""
    about: str
    recipe: Recipe
    data: str
    """What it is trained on if no other is named."""
    grids: tuple[Grid, ...]
    seeds: tuple[int, ...] = SEEDS
    figure: str = "top1"
    """The figure that is compared, after the last epoch; larger is better."""

    def settings(self) -> dict[str, Recipe]:
        """Every setting once, in the order of the grids, with its recipe."""
        return {
            row.key: applied(self.recipe, row.changes) for grid in self.grids for row in grid.rows
        }

    def only(self, where: str) -> "Study":
        """The study of one grid: "Fig. 5", or "fig5"."""
        by_slug = {slug(grid.where): grid for grid in self.grids}
        if slug(where) not in by_slug:
            places = [grid.where for grid in self.grids]
            raise ValueError(f"study {self.name}: no grid {where!r}; it has {', '.join(places)}")
        return replace(self, grids=(by_slug[slug(where)],))


def slug(where: str) -> str:
    """A grid's place in a file's name, and as it is typed: fig5."""
    return "".join(c for c in where.lower() if c.isalnum())


def applied(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with a row's changes."""
    prefix = "model.options."
    for name, value in changes.items():
        if name.startswith(prefix):
            options = {**recipe.model.options, name.removeprefix(prefix): value}
            recipe = change(recipe, model__options=options)
        else:
            recipe = change(recipe, **{name: value})
    return recipe


def _short(value: Any) -> str:
    """A value in a file's name."""
    if isinstance(value, list | tuple):
        return "-".join(map(_short, value))
    return str(value) if value != "" else "none"
