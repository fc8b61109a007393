"""Fused C++ kernels on CPU (attention, feed-forwards, products), bound through ctypes.

The shared library knows nothing of torch (pointers, sizes, strides), so one build serves every
version. It is looked for in this order:

    1. beside this file, where `pip install` puts it when a C++ compiler is at hand;
    2. in the user's cache, where an earlier first use has built it;
    3. else it is built there now.

`SACCADE_NATIVE=0` keeps to plain PyTorch, `SACCADE_NATIVE=avx2` (or generic, avx512, avx512bf16)
forces an instruction set, `SACCADE_CACHE` moves the cache. `where()` says in one line what came of
it.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from saccade.ops.native import build

INSTRUCTION_SETS = tuple(build.INSTRUCTION_SETS)


class Found(NamedTuple):
    library: ctypes.CDLL | None
    why: str


class RefusedError(RuntimeError):
    """A library that must not be called; the message says why."""


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the kernels can be called here; the first call may build them."""
    return find().library is not None


def where() -> str:
    """One line: which backend is used on CPU here, and why."""
    found = find()
    if found.library is None:
        return f"plain PyTorch ({found.why})"
    return f"C++ kernels, {instruction_set()} ({found.why})"


def library() -> ctypes.CDLL:
    found = find()
    if found.library is None:
        raise RuntimeError(f"saccade.ops.native: no kernels here, {found.why}; use the plain path")
    return found.library


def instruction_set() -> str:
    return library().saccade_instruction_set().decode()


def use(name: str = "") -> None:
    """Force an instruction set, or with "" go back to the best one of the machine."""
    if library().saccade_use(name.encode()):
        raise ValueError(
            f"saccade.ops.native.use: this machine cannot run {name!r}; "
            f"try one of {', '.join(INSTRUCTION_SETS)}"
        )


@cache
def find() -> Found:
    setting = os.environ.get("SACCADE_NATIVE", "").strip().lower()
    if setting in ("0", "off", "no", "false"):
        return Found(None, "SACCADE_NATIVE=0")
    found = _installed() or _cached()
    if found.library is not None and setting in INSTRUCTION_SETS:
        if found.library.saccade_use(setting.encode()):
            return Found(None, f"SACCADE_NATIVE={setting}, which this machine cannot run")
        return Found(found.library, f"{found.why}; SACCADE_NATIVE={setting}")
    return found


def _installed() -> Found | None:
    """None also in a checkout whose sources have changed since they were built."""
    try:
        return Found(_load(Path(__file__).parent / build.NAME), "built on install")
    except RefusedError:
        return None


def _cached() -> Found:
    """The library in the cache, named by its sources; built now if it is not there."""
    path = cache_folder() / build.fingerprint() / build.NAME
    why = "built on first use, in the cache"
    if not path.is_file():
        try:
            build.compile_to(path)
        except (build.NoCompilerError, OSError) as error:
            return Found(None, str(error))
        why = f"built now by {' '.join(build.compiler())}"
    try:
        return Found(_load(path), why)
    except RefusedError as error:
        return Found(None, f"the library in the cache is refused, {error}")


def cache_folder() -> Path:
    chosen = os.environ.get("SACCADE_CACHE")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "saccade"


def _load(path: Path) -> ctypes.CDLL:
    """The library with its signatures declared; RefusedError if it is foreign or outdated."""
    from saccade.ops.native.call import CALLS, differences

    try:
        library = ctypes.CDLL(str(path))
        library.saccade_fingerprint.restype = ctypes.c_char_p
        if library.saccade_fingerprint().decode() != build.fingerprint():
            raise RefusedError("it was built from other sources")
        library.saccade_layout.restype = ctypes.POINTER(ctypes.c_int64)
        library.saccade_layout.argtypes = [ctypes.POINTER(ctypes.c_int64)]
        count = ctypes.c_int64()
        numbers = library.saccade_layout(count)
        if difference := next(differences(numbers[: count.value]), None):
            raise RefusedError(f"its calls are laid out otherwise: {difference}")
        library.saccade_instruction_set.restype = ctypes.c_char_p
        library.saccade_use.argtypes = [ctypes.c_char_p]
        for name, structure in CALLS.items():
            for direction in ("forward", "backward"):
                function = getattr(library, f"saccade_{name}_{direction}")
                function.argtypes = [ctypes.POINTER(structure), ctypes.c_size_t]
    except (OSError, AttributeError) as error:
        raise RefusedError(f"it does not load: {error}") from None
    return library
