"""Register your own layers, models, tasks and recipes, so that every command knows them.

@saccade.register("gate")
class Gate(nn.Module): ...                     an attention layer: models linglo_nano_gate, ...

@saccade.register("gate_net")
class GateNet(Backbone): ...                   a model, for saccade and timm

saccade.register("gate_recipe", recipe)        a recipe, for `saccade train gate_recipe`
saccade.register(TASK)                         a task, by its TaskDefinition

saccade train scratch --import my_layer --model linglo_nano_gate --data FOLDER
"""

import inspect
import re
import sys
from functools import partial
from typing import Any

from torch import nn

from saccade import outside, tasks, view
from saccade.models import linglo, zoo
from saccade.models.backbone import Backbone
from saccade.recipes import book
from saccade.recipes.recipe import Recipe
from saccade.tasks.definition import TaskDefinition

WORD = re.compile(r"[a-z][a-z0-9_]{0,60}")
LIKE = ("linglo_nano", "linglo_b0")


def register(
    name: str | TaskDefinition,
    thing: Any = None,
    *,
    like: str | tuple[str, ...] = LIKE,
    **card: Any,
) -> Any:
    """Make a layer, a model, a recipe or a task known; as a decorator or with the thing itself.

    The kind of thing decides:

    - an `nn.Module` class that is built by `(dim, heads)` is an attention layer: it takes and gives
      B H W C. Models are registered that have it in place of key-only attention, one for each of
      `like`: `linglo_nano_NAME`. A method `weights(x)` that gives B H W h is drawn by `view`
    - a `Backbone` class, or a function or `partial` that makes one, is a model
    - any other function that is called with `num_classes` and `in_chans` makes a model of timm's
    - a `Recipe` can be trained by its name; a `TaskDefinition` brings a task

    Args:
        name: what it is called: lower-case letters, digits and _ ; or a task
        thing: the layer, model or recipe; None for a decorator
        like: for a layer, LinGlo's variants that it is put into
        card: for a model, entries of timm's description, such as `input_size=(3, 64, 64)`

    Returns:
        the thing, so that a decorator leaves it as it is
    """
    module = _caller()
    if isinstance(name, TaskDefinition):
        tasks.register(name)
        for settings in (*name.settings, name.augment, name.test):
            if not settings.__module__.startswith("saccade."):
                outside.remember(settings.__name__, module)
        for kind in (name.name, *name.builders, *name.recipes):
            outside.remember(kind, module)
        return name
    if not isinstance(name, str) or not WORD.fullmatch(name):
        raise ValueError(
            f"register: a name has lower-case letters, digits and _, such as 'my_layer'; "
            f"got {name!r}"
        )

    def known(thing: Any) -> Any:
        _add(name, thing, module, (like,) if isinstance(like, str) else like, card)
        return thing

    return known if thing is None else known(thing)


def _add(name: str, thing: Any, module: str, like: tuple[str, ...], card: dict[str, Any]) -> None:
    if isinstance(thing, Recipe):
        book.add(name, thing)
    elif _makes_backbone(thing):
        make = thing if isinstance(thing, partial) else partial(thing)
        zoo.add_variant(name, make, module, card)
    elif inspect.isclass(thing) and issubclass(thing, nn.Module):
        _add_layer(name, thing, module, like)
    elif callable(thing):
        zoo.add_model(name, thing, module, card)
    else:
        raise TypeError(
            f"register: {name!r} is a layer's class, a model's class or function, a recipe or a "
            f"task; got {type(thing).__name__}"
        )
    outside.remember(name, module)


def _makes_backbone(thing: Any) -> bool:
    maker = thing.func if isinstance(thing, partial) else thing
    if inspect.isfunction(maker):
        maker = inspect.signature(maker).return_annotation
        if isinstance(maker, str):  # from __future__ import annotations
            maker = getattr(thing, "__globals__", {}).get(maker)
    return inspect.isclass(maker) and issubclass(maker, Backbone)


def _add_layer(name: str, layer: type[nn.Module], module: str, like: tuple[str, ...]) -> None:
    try:
        inspect.signature(layer).bind(64, 2)
    except TypeError as error:
        raise ValueError(
            f"register: an attention layer is built by (dim, heads), which {layer.__name__} is not "
            f"({error}); give its other arguments defaults"
        ) from error
    for variant in like:
        if variant not in linglo.VARIANTS:
            raise ValueError(
                f"register: like= names LinGlo's variants, {', '.join(linglo.VARIANTS)}; "
                f"got {variant!r}"
            )
    if name in linglo.MIXERS and name not in outside.MODULES:
        raise ValueError(f"register: saccade has a layer named {name!r} already; rename yours")
    mixers: dict[str, Any] = linglo.MIXERS
    mixers[name] = layer
    if callable(getattr(layer, "weights", None)):
        view.BY_WEIGHTS[name] = layer
    for variant in like:
        whole = f"{variant}_{name}"
        zoo.add_variant(
            whole, partial(linglo.VARIANTS[variant], mixer=name), module,
            linglo.TIMM_CONFIGS.get(variant, {}),
        )  # fmt: skip
        outside.remember(whole, module)


def _caller() -> str:
    """The module that calls `register`; a script goes by the name of its file."""
    frame: Any = sys._getframe(2)
    between = ("saccade", "jaxtyping", "beartype")  # this file, and checkers of types around it
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in between:
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "__main__") if frame is not None else "__main__"
    if name != "__main__":
        return name
    file = frame.f_globals.get("__file__", "") if frame is not None else ""
    stem = re.split(r"[\\/]", file)[-1].removesuffix(".py")
    return stem if outside.NAME.fullmatch(stem) else "__main__"
