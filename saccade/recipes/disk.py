"""Recipes as plain values for JSON, and back: what `recipe.json` and saved models hold.

The groups that a task brings carry their class's name as `kind`.
"""

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from saccade.recipes import book
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings
from saccade.recipes.recipe import Recipe, words_for

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
        if not isinstance(get_type_hints(Recipe)[name], type) or not isinstance(
            plain, get_type_hints(Recipe)[name]
        ):
            raise ValueError(f"recipe: {name} is no group of settings, got {str(plain)[:80]!r}")
        return plain
    fields = dict(plain)
    group: Any = get_type_hints(Recipe)[name]
    if name in BASES:
        kind = fields.pop("kind", FIRST[name])
        if not isinstance(kind, str) or kind not in BASES[name].by_kind:
            raise ValueError(
                f"recipe: {name} of kind {kind!r} is unknown to this version; upgrade saccade, "
                f"or import the module that defines it"
            )
        group = BASES[name].by_kind[kind]
        if issubclass(group, TaskSettings):
            fields = group.as_written(fields)
    settings_class: Any = group
    field_names = {f.name for f in dataclasses.fields(settings_class)}
    for key in fields:
        if key not in field_names:
            raise ValueError(f"recipe: {name}.{key} is unknown to this version of saccade")
    hints = get_type_hints(group)
    for key, value in fields.items():
        if not _suits(value, hints[key]):
            type_words = words_for(hints[key])
            raise ValueError(f"recipe: {name}.{key} wants {type_words}, got {str(value)[:80]!r}")
    tuples = {key for key, hint in hints.items() if get_origin(hint) is tuple}
    try:
        return group(**{key: tuple(v) if key in tuples else v for key, v in fields.items()})
    except TypeError as error:
        raise ValueError(f"recipe: {name} is incomplete ({error})") from error


def _suits(value: Any, hint: Any) -> bool:
    """Whether a value that JSON gave is of a field's type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_suits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        type_of_each = [inner[0]] * len(value) if ... in inner else inner
        return len(value) == len(type_of_each) and all(map(_suits, value, type_of_each))
    if hint is float:
        return type(value) in (int, float)
    kind = origin or hint
    if kind is Any or not isinstance(kind, type):
        return True
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
