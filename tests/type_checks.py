"""Types and shapes, checked in every call, for a small part of what jaxtyping's own wrapper costs.

jaxtyping's import hook (`--jaxtyping-packages` in pyproject.toml) puts `jaxtyping.jaxtyped` on
every function of the package; on a function inside a function, each time that the outer one runs.
Its wrapper binds the signature and calls beartype twice. `jaxtyped` here takes its place:

    a function that names arrays (Float[Tensor, "B C H W"])    jaxtyping's wrapper, as before
    any other                                                  beartype alone
    a function inside a function, without arrays               nothing; ty checks it
    in torch.compile and torch.export                          nothing: tracing checks takes long

The checks of a function are made when it is first called.
"""

import functools
import inspect
from typing import get_args

import jaxtyping
import torch
from jaxtyping import AbstractArray

WITH_JAXTYPING = jaxtyping.jaxtyped
LOOK_AT_FRAMES = {"saccade.face.register"}  # which know jaxtyping's frames between them


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
        return eager_only(thing, lambda: WITH_JAXTYPING(thing, typechecker=typechecker))
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
