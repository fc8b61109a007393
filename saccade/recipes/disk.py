"""Recipes as plain values for JSON, and back: what `recipe.json` and saved models hold.

The groups that a task brings carry their class's name as `kind`.
"""

import dataclasses
from typing import Any, get_origin, get_type_hints

from saccade.recipes import book
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Recipe

BASES = {"task": TaskSettings, "augment": AugmentSettings, "test": TestSettings}
FIRST = {"task": "Classify", "augment": "Augment", "test": "Test"}  # of files without a kind

__all__ = ["book", "from_plain", "read_group", "to_plain"]  # the book defines all groups of saccade


def to_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values for JSON."""
    plain = dataclasses.asdict(recipe)
    for key in BASES:
        plain[key]["kind"] = type(getattr(recipe, key)).__name__
    return plain


def from_plain(plain: dict[str, Any]) -> Recipe:
    """The recipe that `to_plain` wrote; a key that this version does not know is refused."""
    groups = {}
    for name in get_type_hints(Recipe):
        if name not in plain:
            raise ValueError(f"recipe: {name!r} is missing; it was written by another version")
        groups[name] = read_group(name, plain[name])
    return Recipe(**groups)


def read_group(name: str, plain: Any) -> Any:
    """One group of a recipe (`task`, `test`, ...) as `to_plain` wrote it."""
    if not isinstance(plain, dict):
        return plain
    fields = dict(plain)
    group: Any = get_type_hints(Recipe)[name]
    if name in BASES:
        kind = fields.pop("kind", FIRST[name])
        if kind not in BASES[name].known:
            raise ValueError(
                f"recipe: {name} of kind {kind!r} is unknown to this version; upgrade saccade, "
                f"or import the module that defines it"
            )
        group = BASES[name].known[kind]
    chosen: Any = group
    known = {f.name for f in dataclasses.fields(chosen)}
    for key in fields:
        if key not in known:
            raise ValueError(f"recipe: {name}.{key} is unknown to this version of saccade")
    tuples = {key for key, hint in get_type_hints(group).items() if get_origin(hint) is tuple}
    return group(**{key: tuple(v) if key in tuples else v for key, v in fields.items()})
