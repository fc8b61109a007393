"""The accuracy that runs reached, for a paper's claims of accuracy: top-1, AP or mIoU.

A claim is answered by finished runs of its variant by the paper's own recipe; a detector's or a
segmenter's recipe has its name. Such a run is *full* if no setting that decides its result was
changed and its data has as many classes as the paper's; others are shown with their differences.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from saccade.models import detectors, zoo
from saccade.paper import Claim
from saccade.recipes import book
from saccade.recipes.recipe import Recipe
from saccade.report.comparison import within
from saccade.report.summary import Summary, differences, setting
from saccade.study.result import measured

# Settings that a machine needs and that should not change a result.
FREE = {
    "model.name", "data.workers", "data.bad", "loop.part", "loop.precision", "loop.compile",
    "loop.checkpointing", "loop.shard", "loop.seed", "loop.save_every", "loop.keep",
    "loop.keep_every", "loop.evaluate_every",
}  # fmt: skip
# A claim's first word, a run's figure, and the one that such a run is judged by. "val acc" is of
# images held out of the training set.
FIGURES = {
    "top-1": ("top1", "top1"), "val": ("top1", "top1"), "mIoU": ("miou", "miou"),
    **{name: (name, "AP") for name in ("AP", "AP50", "AP75", "APs", "APm", "APl")},
}  # fmt: skip
TUNED = "val acc"
SETS = {"AP": 80, "miou": 150}  # classes of COCO and of ADE20K
MOST = 4  # changed settings that are named


@dataclass(frozen=True)
class Reached:
    """The best figure among the runs that speak to a claim, in per cent."""

    value: float
    full: bool
    mark: str
    """`full`, `other data`, `changed` or `small scale`."""
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
    summaries = []
    for path in folders:
        try:
            summary = Summary.of(path)
        except (ValueError, OSError):
            continue
        if summary.finished:
            summaries.append(summary)
    return summaries


def best_run(name: str, claim: Claim, runs: Sequence[Summary]) -> Reached | None:
    """The best figure of runs for a claim about model `name`: full runs before others."""
    own = recipes(name, claim)
    answers = [
        _judged(name, claim, one, own[one.run.name])
        for one in runs
        if one.run.name in own
        and (name in detectors.DETECTORS or one.run.recipe.model.name == name)
        and one.figure == FIGURES[claim.what.split()[0]][1]
        and FIGURES[claim.what.split()[0]][0] in one.best["val"]
        and math.isfinite(one.value(one.best))
        and (claim.what != TUNED or one.run.recipe.data.tune)
    ]
    return max(answers, key=lambda answer: (answer.full, answer.value), default=None)


def best_of_study(name: str, claim: Claim) -> Reached | None:
    """The figure that the studies in the package reached for a claim, at small scale."""
    result = measured(name, claim.where, claim.what)
    if result is None:
        return None
    study, one = result
    spread = f" ± {one.spread:.1f}" if math.isfinite(one.spread) else ""
    seeds = "one seed" if len(one.seeds) == 1 else f"mean of {len(one.seeds)} seeds"
    note = f"{one.mean:.1f}{spread}, {seeds}; saccade study {study} has the whole table"
    return Reached(one.mean, False, "small scale", note)


def recipes(name: str, claim: Claim) -> dict[str, Recipe]:
    """The paper's recipes that a claim about a model was measured with."""
    if claim.what.split()[0] not in FIGURES:
        return {}
    if name in detectors.DETECTORS:
        return {name: book.RECIPES[name]} if name in book.RECIPES else {}
    if name not in zoo.VARIANTS:
        return {}  # another paper's network
    family = book.of_family(zoo.family_of(name))
    short = re.search(r"at (\d+) epochs", claim.what)
    epochs = int(short[1]) if short else next(iter(family.values())).schedule.epochs
    alike_long = {key: recipe for key, recipe in family.items() if recipe.schedule.epochs == epochs}
    own = {key: recipe for key, recipe in alike_long.items() if recipe.model.name == name}
    here = {
        key: recipe
        for key, recipe in alike_long.items()
        if any(other.where == claim.where for other in book.CLAIMS.get(key, ()))
    }
    base = next(iter(alike_long.values()), None)
    alike = {k: r for k, r in alike_long.items() if base and not set(differences(r, base)) - FREE}
    return here or own or alike


def _judged(name: str, claim: Claim, one: Summary, recipe: Recipe) -> Reached:
    # A recipe of backbones is for all of a kind; a detector's own names the one it is built on.
    free = FREE - {"model.name"} if name in detectors.DETECTORS else set(FREE)
    if recipe.schedule.iterations:
        free.add("schedule.epochs")  # follow from the steps and the number of images
    differences_of_recipe = {
        key: values
        for key, values in differences(one.run.recipe, recipe).items()
        if key not in free
    }
    classes, class_count = len(one.run.classes), _classes(name, one.figure)
    tuned = claim.what == TUNED or not one.final
    best = one.best["val"] if tuned else one.final
    kind = "held-out training" if claim.what == TUNED else "validation"
    images = f"{best.get('images', 0):,.0f} {kind} images of {classes:,} classes"
    notes = [f"{images} in {one.run.data!r}, {one.run.folder}"]
    if differences_of_recipe:
        settings = [
            f"{key}={setting(now)} not {setting(was)}"
            for key, (now, was) in differences_of_recipe.items()
        ]
        more = [f"{len(settings) - MOST} more"] if len(settings) > MOST else []
        notes.append("changed: " + ", ".join([*settings[:MOST], *more]))
    mark = (
        "other data" if classes != class_count else "changed" if differences_of_recipe else "full"
    )
    figure = FIGURES[claim.what.split()[0]][0]
    return Reached(best[figure], mark == "full", mark, "; ".join(notes))


def _classes(name: str, figure: str) -> int:
    """How many the paper's data has."""
    return zoo.default_cfgs[name].default.num_classes if name in zoo.VARIANTS else SETS[figure]
