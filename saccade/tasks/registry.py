"""All tasks by name and by the settings of a recipe."""

from typing import Any

from saccade.models import saved
from saccade.recipes import book
from saccade.recipes.disk import read_group
from saccade.recipes.group import TaskSettings
from saccade.recipes.recipe import Recipe
from saccade.tasks.definition import TaskDefinition, Untrained
from saccade.tasks.figures import FIGURES

TASKS: dict[str, TaskDefinition] = {}


def register(definition: TaskDefinition) -> TaskDefinition:
    """Make a task known, so that recipes with its settings train, report and export.

    Args:
        definition: the task; its name, settings and networks may not be taken by another

    Returns:
        the definition
    """
    for other in TASKS.values():
        if other.name == definition.name or set(other.settings) & set(definition.settings):
            raise ValueError(
                f"register: the task {other.name!r} is registered already; choose another name, "
                f"and settings of its own"
            )
    for name, recipe in definition.recipes.items():
        book.add(name, recipe)
    for kind, build in definition.builders.items():
        saved.register_builder(kind, build)
    for name, about in definition.figures.items():
        FIGURES.setdefault(name, about)
    TASKS[definition.name] = definition
    return definition


def of_settings(settings: TaskSettings) -> TaskDefinition:
    """The task that a recipe's `task` group belongs to."""
    for definition in TASKS.values():
        if type(settings) in definition.settings:
            return definition
    raise ValueError(
        f"no task is registered for {type(settings).__name__!r}; "
        f"call saccade.tasks.register with its definition"
    )


def of(recipe: Recipe) -> TaskDefinition:
    """The task of a recipe; groups that belong to another task are refused."""
    definition = of_settings(recipe.task)
    for name, group in (("augment", definition.augment), ("test", definition.test)):
        value = getattr(recipe, name)
        if not isinstance(value, group):
            raise ValueError(
                f"recipe: a {type(recipe.task).__name__} task takes {name} of kind "
                f"{group.__name__}, got {type(value).__name__}; begin with another recipe"
            )
    return definition


def of_notes(notes: dict[str, Any]) -> tuple[TaskDefinition, Any]:
    """The task of a saved model and its settings; the first files of all held classifiers."""
    settings = read_group("task", notes.get("task", {"kind": "Classify"}))
    return of_settings(settings), settings


def untrained(name: str) -> Untrained | None:
    """A network with fresh weights by its name in a paper, for the first task that knows it."""
    networks = (definition.untrained(name) for definition in TASKS.values())
    return next((one for one in networks if one is not None), None)
