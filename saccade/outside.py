"""Models, layers and tasks registered from outside of saccade, and the modules that register them.

A model's file and a run's recipe name the modules that they need. They are never imported because a
file says so: a file may come from a stranger, and to import a module is to run it. Whoever wants
them types `--import my_layer`, or imports the module in Python. Packages that are installed may
name modules in the entry point group "saccade"; these are imported with saccade.
"""

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

MODULES: dict[str, str] = {}
"""The module that registered a word: a model, a layer, a task's settings."""
NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*", re.ASCII)
GROUP = "saccade"  # of entry points
SWITCH = "SACCADE_PLUGINS"  # 0: import no entry points


class NotImportedError(ValueError):
    """A file needs a module that only a person may import."""


def remember(word: str, module: str) -> None:
    """Note which module registered a word."""
    MODULES[word] = module


def needed(words: Iterable[Any]) -> dict[str, str]:
    """The words among these that were registered from outside, with their modules."""
    return {word: MODULES[word] for word in words if isinstance(word, str) and word in MODULES}


def words_in(value: Any) -> list[str]:
    """All texts in plain values, such as a model's description."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [word for inner in value.values() for word in words_in(inner)]
    if isinstance(value, list | tuple):
        return [word for inner in value for word in words_in(inner)]
    return []


def check(imports: Any, where: str) -> None:
    """Refuse a file that needs a module that was not imported; the error says which, and how to
    import it.

    Args:
        imports: words and their modules, as a file has them
        where: the file
    """
    if imports is None:
        return
    if not isinstance(imports, Mapping) or not all(
        isinstance(one, str) and len(one) < 200 and NAME.fullmatch(one) for one in imports.values()
    ):
        raise ValueError(f"{where}: its list of modules is not as saccade writes it; save it again")
    missing = sorted({module for word, module in imports.items() if word not in MODULES})
    if missing:
        options = " ".join(f"--import {module}" for module in missing)
        raise NotImportedError(
            f"{where} was made with {', '.join(map(repr, missing))}, which saccade does not import "
            f"by itself, for that would run its code; if it is yours, add {options} "
            f"(in Python: import it first)"
        )


def load(word: str) -> None:
    """Import a module that a person named: `my_layer`, or `path/to/my_layer.py`.

    The working directory, or the file's folder, is searched after all installed packages.
    """
    path = Path(word)
    is_file = word.endswith(".py") or "/" in word or os.sep in word
    name = path.stem if is_file else word
    if not NAME.fullmatch(name):
        raise ValueError(f"--import {word}: give a module's name such as my_layer, or its file")
    if is_file and not path.is_file():
        raise FileNotFoundError(f"--import {word}: there is no such file")
    folder = str(path.parent.absolute() if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise ValueError(f"--import {word}: it needs {error.name!r}; install that") from error
        raise ValueError(
            f"--import {word}: no module {name!r} here or installed; go to its folder, or name its "
            f"file"
        ) from error
    except Exception as error:
        raise ValueError(f"--import {word}: it fails ({type(error).__name__}: {error})") from error
    origin = getattr(module, "__file__", None)
    if is_file and (origin is None or Path(origin).resolve() != path.resolve()):
        raise ValueError(
            f"--import {word}: another module is named {name!r} ({origin}); rename the file"
        )


def load_plugins() -> None:
    """Import what installed packages name in their entry points; one that fails is passed over."""
    if os.environ.get(SWITCH) == "0":
        return
    for point in metadata.entry_points(group=GROUP):
        try:
            importlib.import_module(point.module)
        except Exception as error:
            logging.getLogger("saccade").warning(
                "the plugin %r cannot be imported (%s: %s) and is left out; %s=0 leaves out all",
                point.name, type(error).__name__, error, SWITCH,
            )  # fmt: skip
