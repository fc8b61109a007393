"""Base classes of the recipe groups that each task defines: its settings and its images'.

A subclass is known by its name from its definition on, so that a recipe on disk can be read again.
"""

from dataclasses import Field, field, fields
from typing import Any, ClassVar


class TaskSettings:
    """Base of a recipe's `task`: the settings of its loss and network."""

    by_kind: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _remember(cls, TaskSettings.by_kind)

    @classmethod
    def as_written(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The settings of a file, completed by what the version that wrote it did not state yet."""
        return fields


class AugmentSettings:
    """Base of a recipe's `augment`: the preprocessing of training images."""

    by_kind: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _remember(cls, AugmentSettings.by_kind)


class TestSettings:
    """Base of a recipe's `test`: the preprocessing of evaluated images."""

    __test__ = False  # no test of pytest's
    by_kind: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _remember(cls, TestSettings.by_kind)


def _remember(group: type, by_kind: dict[str, type]) -> None:
    """Names are what recipes on disk keep, so two groups may not share one."""
    other = by_kind.setdefault(group.__name__, group)
    if (other.__module__, other.__qualname__) != (group.__module__, group.__qualname__):
        raise ValueError(
            f"recipe: {other.__module__} has a group named {group.__name__!r} already; "
            f"choose another name"
        )
    by_kind[group.__name__] = group


def path_field(installed: tuple[str, ...] = (), **options: Any) -> Any:
    """A field that may hold the path of a file on this machine.

    Args:
        installed: names that it may hold instead, of what a package brings
        options: those of `dataclasses.field`
    """
    return field(metadata={"path": True, "installed": installed}, **options)


def path_fields(group: Any) -> list[str]:
    """The names of a group's fields that may hold a path."""
    return [f.name for f in fields(group) if _is_path(f)]


def installed_names(group: Any, name: str) -> tuple[str, ...]:
    """The names that a field with a path may hold instead, of what a package brings."""
    (own,) = (f for f in fields(group) if f.name == name)
    return own.metadata.get("installed", ())


def _is_path(one: Field) -> bool:
    return one.metadata.get("path", False)
