"""Types and shapes, checked in every call, for a small part of what jaxtyping's own wrapper costs.

jaxtyping's import hook (`--jaxtyping-packages` in pyproject.toml) puts `jaxtyping.jaxtyped` on
every function of the package; on a function inside a function, each time that the outer one runs.
Its wrapper binds the signature and calls beartype twice. `jaxtyped` here takes its place:

    a function that names arrays (Float[Tensor, "B C H W"])    jaxtyping's wrapper, as before, once
                                                               for arguments of equal shapes
    any other                                                  beartype alone
    a function inside a function, without arrays               nothing; ty checks it
    in torch.compile and torch.export                          nothing: tracing checks takes long

The checks of a function are made when it is first called. Whether arguments and a result are right
follows from their types, their tensors' shapes and dtypes, and the values of plain numbers: calls
that are equal in all of these are checked once (`once`).
"""

import functools
import inspect
from typing import get_args

import jaxtyping
import numpy as np
import torch
from jaxtyping import AbstractArray

WITH_JAXTYPING = jaxtyping.jaxtyped
LOOK_AT_FRAMES = {"saccade.face.register"}  # which know jaxtyping's frames between them
LONGEST = 16  # items of a list or a dict that are described; longer ones are checked in every call
MOST = 1000  # calls that are remembered of a function
TENSORS = {torch.Tensor, torch.nn.Parameter}
PLAIN = {int, float, bool, str, type(None), complex, bytes}


def install():
    """Let the import hook use the quick wrapper; before the package is imported."""
    jaxtyping.jaxtyped = jaxtyped


def jaxtyped(thing=None, *, typechecker):
    """In the place of `jaxtyping.jaxtyped`, for functions; dataclasses go the usual way."""
    if thing is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if not inspect.isfunction(thing) or thing.__module__ in LOOK_AT_FRAMES:
        return WITH_JAXTYPING(thing, typechecker=typechecker)
    hints = [*getattr(thing, "__annotations__", {}).values()]
    if any(map(names_arrays, hints)):
        return eager_only(thing, lambda: once(thing, typechecker))
    if not hints or "<locals>" in thing.__qualname__:
        return thing
    return eager_only(thing, lambda: with_types(thing, typechecker))


def names_arrays(hint):
    """Whether a type names an array and its shape, or might: text is not looked into."""
    if isinstance(hint, str):
        return True
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    inner = get_args(hint)
    return any(names_arrays(one) for one in inner if not isinstance(one, str | list)) or any(
        names_arrays(one) for part in inner if isinstance(part, list) for one in part
    )


def with_types(function, typechecker):
    """The function checked by beartype; by way of jaxtyping where beartype knows a type not so."""
    try:
        return typechecker(function)
    except Exception:
        return WITH_JAXTYPING(function, typechecker=typechecker)


def eager_only(function, check):
    """The function, which calls `check()` of it instead, made at its first call outside a graph."""
    checked = []

    @functools.wraps(function)
    def call(*args, **kwargs):
        if torch.compiler.is_compiling() or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if not checked:
            checked.append(check())
        return checked[0](*args, **kwargs)

    return call


def once(function, typechecker):
    """The function with jaxtyping's checks, which are skipped for what was right before.

    Arguments are checked before the function runs, and a result after it. Where arguments were seen
    with another result, the new one is checked by a function that only gives it back.
    """
    checked = WITH_JAXTYPING(function, typechecker=typechecker)
    right = {}  # descriptions of arguments: those of results

    @functools.wraps(function)
    def given_back(*args, **kwargs):
        return latest.pop()

    latest = []
    check_result = WITH_JAXTYPING(given_back, typechecker=typechecker)

    def call(*args, **kwargs):
        try:
            arguments = (*map(describe, args), *kwargs, *map(describe, kwargs.values()))
            results = right.get(arguments)
        except UnknownError:
            return checked(*args, **kwargs)
        result = (checked if results is None else function)(*args, **kwargs)
        try:
            described = describe(result)
        except UnknownError:
            described = None
        if results is not None and (described is None or described not in results):
            latest.append(result)
            check_result(*args, **kwargs)
        if described is not None:
            if len(right) > MOST:
                right.clear()
            right.setdefault(arguments, set()).add(described)
        return result

    return call


class UnknownError(Exception):
    """A value whose checks may depend on more than can be described."""


def describe(value):
    """All that a check of a value looks at, as something that can be compared."""
    kind = type(value)
    if kind in TENSORS:  # no subclass: their sizes may be symbols of a graph that is being made
        return kind, value.shape, value.dtype
    if kind in PLAIN:
        return kind, value
    if kind is np.ndarray:
        return kind, value.shape, value.dtype
    if isinstance(value, torch.Tensor):
        raise UnknownError
    if isinstance(value, tuple | list):
        if len(value) > LONGEST:
            raise UnknownError
        return kind, *map(describe, value)
    if isinstance(value, dict):
        if len(value) > LONGEST:
            raise UnknownError
        return kind, *value, *map(describe, value.values())
    return kind
