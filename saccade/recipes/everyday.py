"""The everyday short forms of `saccade train`, as the `--set` words that they stand for."""

import dataclasses
import json
from typing import Any

from saccade.recipes.recipe import Recipe, Schedule

KEYS = {
    "model": "model.name", "start": "model.start", "epochs": "schedule.epochs",
    "batch": "loop.batch", "lr": "optim.lr", "seed": "loop.seed",
}  # fmt: skip
SIDES = ("size", "short", "long", "crop", "pad", "cutout")


def everyday(recipe: Recipe, *, size: int | None = None, **typed: Any) -> list[str]:
    """`epochs=3` as `schedule.epochs=3`, and so on; what was not typed (None) is left out."""
    words = [f"{KEYS[name]}={value}" for name, value in typed.items() if value is not None]
    if typed.get("epochs") is not None:
        words += _plan(recipe.schedule, typed["epochs"])
    return words if size is None else [*words, *_sides(recipe, size)]


def _plan(schedule: Schedule, epochs: int) -> list[str]:
    """What else must change for a run to last so many epochs."""
    words = []
    if schedule.iterations is not None:
        words.append("schedule.iterations=null")  # else the iterations would count, not the epochs
    if 0 < epochs <= schedule.warmup:  # shortened in proportion, so that epochs remain after it
        words.append(f"schedule.warmup={schedule.warmup * epochs / schedule.epochs:.3g}")
    return words


def _sides(recipe: Recipe, size: int) -> list[str]:
    """Every length in pixels of what is done to images, in proportion to the one that is named."""
    groups: dict[str, Any] = {"augment": recipe.augment, "test": recipe.test}
    usual = getattr(recipe.augment, "size", None) or getattr(recipe.test, "short", size)
    words = []
    for group, options in groups.items():
        for field in dataclasses.fields(options):
            length = getattr(options, field.name)
            if field.name not in SIDES or not length or isinstance(length, float):
                continue
            many = isinstance(length, tuple)
            scaled = [round(side * size / usual) for side in (length if many else (length,))]
            words.append(f"{group}.{field.name}={json.dumps(scaled if many else scaled[0])}")
    return words
