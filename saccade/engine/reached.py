"""What runs reached of the accuracy that a paper claims.

A claim is answered by finished runs of its variant by the paper's own recipe. Such a run is *full*
if nothing that decides its result was changed and its data has as many classes as the paper's;
any other is shown with what is different about it, so that nobody takes one for the other.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from saccade.engine.compare import within
from saccade.engine.summary import Summary, differences, setting
from saccade.models import zoo
from saccade.paper import Claim
from saccade.recipes import book
from saccade.recipes.recipe import Recipe

# What a machine needs and a result should not depend on.
FREE = {
    "model.name", "data.workers", "data.bad", "loop.part", "loop.precision", "loop.compile",
    "loop.checkpointing", "loop.shard", "loop.seed", "loop.save_every", "loop.keep",
    "loop.evaluate_every",
}  # fmt: skip
MOST = 4  # changed settings that are named


@dataclass(frozen=True)
class Reached:
    """The best top-1 among the runs that speak to a claim, in per cent."""

    top1: float
    full: bool
    mark: str
    """`full`, `other data` or `changed`."""
    note: str
    """Which run, on what, and what is different about it."""


def finished(folder: str | Path) -> list[Summary]:
    """The finished runs anywhere in a folder; what cannot be read is no run."""
    if not Path(folder).is_dir():
        return []
    try:
        folders = within(str(folder))
    except FileNotFoundError:
        return []
    found = []
    for path in folders:
        try:
            summary = Summary.of(path)
        except (ValueError, OSError):
            continue
        if summary.finished and summary.figure == "top1":
            found.append(summary)
    return found


def reached(name: str, claim: Claim, runs: Sequence[Summary]) -> Reached | None:
    """The best that runs reached of a claim about variant `name`: full ones before others."""
    asked = recipes(name, claim)
    answers = [
        _judged(name, one, asked[one.run.name])
        for one in runs
        if one.run.recipe.model.name == name
        and one.run.name in asked
        and math.isfinite(one.value(one.best))
    ]
    return max(answers, key=lambda answer: (answer.full, answer.top1), default=None)


def recipes(name: str, claim: Claim) -> dict[str, Recipe]:
    """The paper's recipes that a claim about a variant was measured with."""
    if not claim.what.startswith("top-1"):
        return {}  # a share held out of the training images is not what a run reports
    family = book.BOOKS[zoo.family_of(name)].RECIPES
    short = re.search(r"at (\d+) epochs", claim.what)
    epochs = int(short[1]) if short else next(iter(family.values())).schedule.epochs
    found = {key: recipe for key, recipe in family.items() if recipe.schedule.epochs == epochs}
    own = {key: recipe for key, recipe in found.items() if recipe.model.name == name}
    here = {
        key: recipe
        for key, recipe in found.items()
        if any(said.where == claim.where for said in book.CLAIMS.get(key, ()))
    }
    base = next(iter(found.values()), None)
    alike = {k: r for k, r in found.items() if base and not set(differences(r, base)) - FREE}
    return here or own or alike


def _judged(name: str, one: Summary, recipe: Recipe) -> Reached:
    changed = {
        key: values
        for key, values in differences(one.run.recipe, recipe).items()
        if key not in FREE
    }
    classes, wanted = len(one.run.classes), zoo.default_cfgs[name].default.num_classes
    best = one.best["val"]
    images = f"{best.get('images', 0):,.0f} validation images of {classes:,} classes"
    said = [f"{images} in {one.run.data!r}, {one.run.folder}"]
    if changed:
        told = [f"{key}={setting(now)} not {setting(was)}" for key, (now, was) in changed.items()]
        more = [f"{len(told) - MOST} more"] if len(told) > MOST else []
        said.append("changed: " + ", ".join([*told[:MOST], *more]))
    mark = "other data" if classes != wanted else "changed" if changed else "full"
    return Reached(best["top1"], mark == "full", mark, "; ".join(said))
