"""What is particular about each task: one file a kind, so that the engine needs no branch.

A kind knows how its images are found and shown, how its network is built, and what is asked of it.
"""

from importlib import import_module
from typing import Any

from saccade.engine.kinds.kind import Kind
from saccade.recipes import recipe as words

__all__ = ["Kind", "kept", "named", "of"]

FILES = {"Classify": "classify", "Distill": "classify", "RetinaNet": "boxes", "Detr": "boxes"}
FILES |= {"Segment": "masks", "AutoEncode": "pictures"}


def of(recipe: words.Recipe) -> Kind:
    """The kind of a recipe's task; groups that belong to another kind are refused."""
    kind = named(type(recipe.task).__name__)
    for group, wanted in (("augment", kind.augments), ("test", kind.tests)):
        given = getattr(recipe, group)
        if not isinstance(given, wanted):
            raise ValueError(
                f"recipe: a {type(recipe.task).__name__} task takes {group} of kind "
                f"{wanted.__name__}, got {type(given).__name__}; begin with another recipe"
            )
    return kind


def named(task: str) -> Kind:
    """The kind of a task by the name of its words in a recipe, as a saved model keeps it."""
    if task not in FILES:
        raise ValueError(f"this version of saccade knows no task {task!r}; upgrade saccade")
    return import_module(f"saccade.engine.kinds.{FILES[task]}").KIND


def kept(notes: dict[str, Any]) -> tuple[Kind, Any]:
    """The kind of a saved model and its task's words; the first files of all held classifiers."""
    asked = words.group("task", notes.get("task", {"kind": "Classify"}))
    return named(type(asked).__name__), asked
