"""What a person types or calls, as the recipe, the images and the folder of a run."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from saccade import weights
from saccade.recipes import book
from saccade.recipes.everyday import everyday
from saccade.recipes.recipe import Recipe, change, override

# What a recipe is trained on without --data.
DATA = {
    "quick": "mnist", "quick_solar": "solar", "cifar_quick": "cifar10", "cifar_record": "cifar10",
    "cifar_best": "cifar10", "cifar_pretrain": "cifar10",
}  # fmt: skip
# Recipes that begin with weights of the package, where their model has some.
WARM = ("finetune", "distill", "segment", "detect", "detect_rtdetr", "instances")


class Plan(NamedTuple):
    """What is to be trained: a recipe by name, as changed, and where its images lie."""

    name: str
    recipe: Recipe
    data: str


def plan(recipe: str | Recipe, data: str | None, words: Sequence[str] = (), **short: Any) -> Plan:
    """The recipe with its changes, and the images that it is made for if none are named.

    Args:
        recipe: a recipe, or the name of one
        data: where images lie
        words: KEY=VALUE, changes of any part of the recipe
        short: everyday changes by their short names, see `saccade.recipes.everyday`
    """
    if recipe == "quick" and data == "solar":
        recipe = "quick_solar"
    name = recipe if isinstance(recipe, str) else recipe.model.name
    full_recipe = book.find(recipe) if isinstance(recipe, str) else recipe
    typed = [*everyday(full_recipe, **short), *words]
    full_recipe = override(full_recipe, typed)
    if full_recipe.model.start and not any(word.startswith("model.name=") for word in typed):
        full_recipe = _of_the_start(full_recipe)
    data = DATA.get(name) if data is None else data
    if data is None:
        from saccade import tasks  # with torch, which a wrong name need not wait for

        raise ValueError(
            f"train {name}: which images? --data FOLDER: {tasks.of(full_recipe).data_hint}"
        )
    if name in WARM and not full_recipe.model.start:
        from_none = any(word.startswith("model.start=") for word in typed)
        start = None if from_none else weights.start(full_recipe.model.name)
        fetched = full_recipe.model.options.get("pretrained")  # by timm
        if start is None and name == "finetune" and not fetched:
            raise ValueError(
                f"train finetune: with which weights of {full_recipe.model.name!r}? --start RUN, "
                f"or timm's by --set model.options.pretrained=true; 'saccade train scratch' begins "
                f"without any"
            )
        full_recipe = change(full_recipe, model__start=start or "")
    return Plan(name, full_recipe, data)


def _of_the_start(recipe: Recipe) -> Recipe:
    """The recipe with the network of the weights that it starts from, where they name one."""
    from saccade.models.saved import architecture

    name = architecture(recipe.model.start)
    return recipe if name is None else change(recipe, model__name=name)


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Changes in a mapping, as words: {"optim.lr": 0.1} is ["optim.lr=0.1"]."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]


def free_folder(recipe: str) -> Path:
    """runs/quick, runs/quick-2, ...: the first that is not taken.

    A process that torchrun has started again goes on with the last that is.
    """
    folder, last, n = Path("runs") / recipe, None, 1
    while (folder / "steps.jsonl").exists():
        n += 1
        last, folder = folder, Path("runs") / f"{recipe}-{n}"
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return last if again and last is not None else folder
