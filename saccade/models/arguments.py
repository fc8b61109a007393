"""Check the arguments that a weights file gives to a model: none may open or fetch anything.

A weights file names its model and the arguments that build it again. It may come from a stranger,
so a name is one that is registered here, a key is an argument of that very model's class, and a
value is plain: a number, a short text, or a list of them. Nothing that reaches the network, a cache
or another file passes (timm's `checkpoint_path`, `pretrained_cfg_overlay`, `hf-hub:` names, ...).
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import timm
from torch import nn

from saccade.models import zoo
from saccade.spelling import nearest

NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)
FETCHING = frozenset(
    {
        "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict",
        "pretrained_filter_fn", "pretrained_model_args", "checkpoint_path", "cache_dir",
        "custom_load", "model_cfg", "kwargs_filter", "pruned", "url", "file",
    }
)  # fmt: skip
WRAPPING = frozenset(
    {
        "features_only", "feature_cfg", "feature_cls", "out_indices", "scriptable", "exportable",
        "no_jit", "device", "dtype", "cfg", "self", "make", "overrides", "args", "kwargs",
    }
)  # fmt: skip
COMMON = frozenset({"num_classes", "in_chans", "global_pool", "drop_rate", "drop_path_rate"})
SHARES = ("drop_path", "drop_path_rate", "drop_rate")
DEPTHS = ("depth", "depths", "layers", "encoder", "decoder")  # how many blocks are built
LARGEST, SMALLEST, LONGEST, DEEPEST = 1 << 20, 1e-6, 200, 4


def check(
    about: Mapping[str, Any], build: Callable[..., nn.Module] | None = None, tensors: int = 10_000
) -> None:
    """Refuse a description of a model with anything that should not be in it.

    Args:
        about: name and arguments, as `describe` gives them, without `kind` and `fused`
        build: what they are for; a model of timm if None
        tensors: how many the file holds, for a model cannot have more blocks
    """
    if build is None or "name" in inspect.signature(build).parameters:
        check_name(about.get("name"))
    parameters = _parameters_of(str(about.get("name", "")), build)
    words = getattr(sys.modules.get(getattr(build, "__module__", "")), "WORDS", ())
    for key, value in about.items():
        if key in FETCHING | WRAPPING or (
            parameters is not None and key not in {*parameters, *words}
        ):
            close = f"; did you mean {nearest(key, parameters)!r}?" if parameters else ""
            raise ValueError(f"no argument {key[:LONGEST]!r} may come from a file{close}")
        if key == "settings" and isinstance(value, Mapping):
            for inner, setting in value.items():
                if inner not in words:
                    raise ValueError(f"no setting {str(inner)[:LONGEST]!r} is known")
                check_value(inner, setting, tensors)
            continue
        check_value(key, value, tensors)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse a recipe's `model.options` that would open files, fetch, or wrap the model."""
    for key, value in options.items():
        try:
            if key in FETCHING - {"pretrained"}:
                raise ValueError("would fetch or open files; start from weights with model.start")
            if key in WRAPPING:
                raise ValueError("is set by saccade itself; leave it out")
            if key == "pretrained" and type(value) is not bool:
                raise ValueError(f"is true or false, got {value!r}")
            if key in (*SHARES, "global_pool", "in_chans"):
                check_value(key, value)
        except ValueError as error:
            raise ValueError(f"model.options.{key}: {error}") from None


def check_name(name: Any) -> None:
    """Refuse a name that no model registered with timm has."""
    if not isinstance(name, str):
        raise ValueError("it names no model")
    if not NAME.fullmatch(name) or not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"no model named {name[:LONGEST]!r} is known here")


def check_value(key: str, value: Any, tensors: int = 10_000) -> None:
    """Refuse a value that is not plain, not finite, or larger than any model has it."""
    wrong = _wrong(value, 0)
    if wrong:
        raise ValueError(f"the argument {key!r} {wrong}")
    if key == "global_pool" and not isinstance(value, str):
        raise ValueError(f"global_pool is a word such as avg, got {value!r}")
    if key == "in_chans" and (type(value) is not int or value < 1):
        raise ValueError(f"in_chans is a whole number, 1 or more, got {value!r}")
    shares = type(value) in (int, float) and 0 <= value < 1
    if key in SHARES and value is not None and not shares:
        raise ValueError(f"{key} is a share from 0 to below 1, got {value!r}")
    if key in DEPTHS:
        numbers = value if isinstance(value, list | tuple) else [value]
        if sum(n for n in numbers if type(n) is int) > tensors:
            raise ValueError(f"the argument {key!r} asks for more blocks than there are weights")


def check_card(card: Mapping[str, Any]) -> None:
    """Refuse a description whose input size, mean or deviation fits no picture."""
    for key, value in card.items():
        check_value(key, value)
        if key in ("input_size", "mean", "std"):
            kinds = (int,) if key == "input_size" else (int, float)
            least = {"input_size": 1, "mean": -LARGEST, "std": SMALLEST}[key]
            numbers = value if isinstance(value, list | tuple) else ()
            counts = (3,) if key == "input_size" else (1, 3)
            sound = all(type(number) in kinds and number >= least for number in numbers)
            if len(numbers) not in counts or not sound:
                raise ValueError(f"{key} is three numbers of {least} or more, got {value!r}")
        elif key in ("crop_pct", "num_classes") and type(value) not in (int, float, type(None)):
            raise ValueError(f"{key} is a number, got {value!r}")
        elif key in ("interpolation", "crop_mode") and type(value) not in (str, type(None)):
            raise ValueError(f"{key} is a word, got {value!r}")


def _wrong(value: Any, depth: int) -> str:
    """What is wrong with a value, if anything."""
    if value is None or type(value) is bool:
        return ""
    if type(value) in (int, float):
        sound = abs(value) <= LARGEST  # not so of nan
        return "" if sound else "is too large a number"
    if type(value) is str:
        return "" if len(value) <= LONGEST and "/" not in value else "is no plain word"
    if type(value) not in (list, tuple) or depth > DEEPEST or len(value) > LONGEST:
        return f"is no number, word or list, but a {type(value).__name__}"
    return next(filter(None, (_wrong(inner, depth + 1) for inner in value)), "")


def _parameters_of(name: str, build: Callable[..., nn.Module] | None) -> frozenset[str] | None:
    """The arguments that a model has; None if its builder takes any."""
    if build is None:
        return frozenset({"name"}) | _of_model(name)
    parameters = inspect.signature(build).parameters.values()
    own = frozenset(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
    if all(p.kind is not p.VAR_KEYWORD for p in parameters):
        return own
    return own | _of_model(name) | {"drop_path"} if "name" in own else None


@cache
def _of_model(name: str) -> frozenset[str]:
    """The arguments of a model's class, or of all classes in its file where timm hides which."""
    bare = name.partition(".")[0]
    if bare in zoo.VARIANTS:
        classes: Iterable[Any] = (zoo.VARIANTS[bare].func,)
    else:
        module = vars(sys.modules[timm.model_entrypoint(bare).__module__]).values()
        classes = [c for c in module if isinstance(c, type) and issubclass(c, nn.Module)]
    words = {word for one in classes for word in inspect.signature(one).parameters}
    return frozenset(words) - FETCHING - WRAPPING | COMMON
