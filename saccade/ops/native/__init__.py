"""Fused C++ kernels on CPU (attention, feed-forwards, products), bound through ctypes.

The shared library knows nothing of torch (pointers, sizes, strides), so one build serves every
version. It is looked for in this order:

    1. beside this file, where `pip install` puts it when a C++ compiler is at hand;
    2. in the user's cache, where an earlier first use has built it;
    3. else it is built there now, by one process at a time.

A library that is damaged (cut short, altered, unreadable) is not used and, in the cache, built
anew; no library is loaded before its digest was checked.

`SACCADE_NATIVE=0` keeps to plain PyTorch, `SACCADE_NATIVE=avx2` (or generic, avx512, avx512bf16)
forces an instruction set, `SACCADE_CACHE` moves the cache. `where()` says in one line which kernels
are used, and why.
"""

import ctypes
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from saccade.ops.native import build

INSTRUCTION_SETS = tuple(build.INSTRUCTION_SETS)
INSTALLED = Path(__file__).with_name(build.NAME)
CHANGED = "if strip or patchelf changed it, seal it again as docs/install.md says"
uses = 0  # calls of `use`: matrices that were laid out for one instruction set do not fit another


class Kernels(NamedTuple):
    library: ctypes.CDLL | None
    why: str


class RefusedError(RuntimeError):
    """A library that must not be called; the message says why."""


class OutdatedError(RuntimeError):
    """There is no library of these sources at this place."""


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the kernels can be called here; the first call may build them."""
    return find().library is not None


def where() -> str:
    """One line: which backend is used on CPU here, and why."""
    kernels = find()
    if kernels.library is None:
        return f"plain PyTorch ({kernels.why})"
    return f"C++ kernels, {instruction_set()} ({kernels.why})"


def library() -> ctypes.CDLL:
    kernels = find()
    if kernels.library is None:
        raise RuntimeError(
            f"saccade.ops.native: no kernels here, {kernels.why}; use the plain path"
        )
    return kernels.library


def kernels() -> str:
    """The file of the kernels, which is also a library of operators for ONNX Runtime.

    Files of `saccade export --to onnx --kernels` run in any program that registers it:

        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(saccade.kernels())

    It needs neither saccade nor torch, and may be copied to where the file is to run.
    """
    return library()._name


def instruction_set() -> str:
    return library().saccade_instruction_set().decode()


def use(name: str = "") -> None:
    """Force an instruction set, or with "" go back to the best one of the machine."""
    global uses
    uses += 1
    if library().saccade_use(name.encode()):
        raise ValueError(
            f"saccade.ops.native.use: this machine cannot run {name!r}; "
            f"try one of {', '.join(INSTRUCTION_SETS)}"
        )


@cache
def find() -> Kernels:
    setting = os.environ.get("SACCADE_NATIVE", "").strip().lower()
    if setting in ("0", "off", "no", "false"):
        return Kernels(None, "SACCADE_NATIVE=0")
    kernels = _search()
    if kernels.library is not None and setting in INSTRUCTION_SETS:
        if kernels.library.saccade_use(setting.encode()):
            return Kernels(None, f"SACCADE_NATIVE={setting}, which this machine cannot run")
        return Kernels(kernels.library, f"{kernels.why}; SACCADE_NATIVE={setting}")
    return kernels


def _search() -> Kernels:
    """The first library that can be called, and why those before it cannot."""
    notes: list[str] = []
    try:
        return Kernels(_load(INSTALLED), "installed with saccade")
    except OutdatedError:  # as in a checkout whose sources have changed since
        if os.path.lexists(INSTALLED):
            notes.append("the installed library was built from other sources")
    except RefusedError as error:
        notes.append(f"the installed library is not used: {error}")
    except build.DamagedError as error:
        notes.append(f"the installed library is not used: {error}; {CHANGED}")
    try:
        library, why = _cached(notes)
    except (RefusedError, build.DamagedError, build.NoCompilerError, OSError) as error:
        return Kernels(None, "; ".join([str(error), *notes]))
    return Kernels(library, "; ".join([why, *notes]))


def _cached(notes: list[str]) -> tuple[ctypes.CDLL, str]:
    """The library in the cache, named by its sources; built now unless a whole one is there."""
    path = cache_folder() / build.fingerprint() / build.NAME
    earlier = "built on first use, in the cache"
    _own(cache_folder(), path.parent, path)
    try:
        return _load(path), earlier
    except OutdatedError:
        pass
    except build.DamagedError as error:
        notes.append(f"the library in the cache was damaged: {error}")
    path.parent.mkdir(parents=True, exist_ok=True)
    _own(cache_folder(), path.parent)
    with _one_at_a_time(path.parent):
        try:
            return _load(path), earlier  # another process was faster
        except (OutdatedError, build.DamagedError):
            build.compile_to(path)
    return _load(path), f"built now by {' '.join(build.compiler())}"


def _own(*paths: Path) -> None:
    """Refuse a cache that other users can write to: a seal shows damage, not who built a library.

    Links are followed first: what counts is the file that would be loaded.
    """
    if not hasattr(os, "geteuid"):
        return
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            others = status.st_uid not in (0, os.geteuid())
            if others or status.st_mode & stat.S_IWOTH:
                whose = "belongs to another user" if others else "may be written by all users"
                raise RefusedError(
                    f"{path} {whose}, and a library there would run as you; "
                    f"set SACCADE_CACHE to a folder of your own"
                )


@contextmanager
def _one_at_a_time(folder: Path) -> Generator[None]:
    """Wait for other processes that build here; the system releases the lock when they end."""
    with (folder / ".lock").open("w") as lock:
        with suppress(ImportError, OSError):  # where there are no locks, all build
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    place = os.environ.get("SACCADE_CACHE")
    if place:
        return Path(place)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "saccade"


def _load(path: Path) -> ctypes.CDLL:
    """The library with its signatures declared; raises if it must not be called or opened."""
    from saccade.ops.native.call import CALLS, FORWARD_ONLY, differences

    if not os.path.lexists(path) or build.sealed(path) != build.fingerprint():
        raise OutdatedError(f"{path} is not there, or was built from other sources")
    try:
        library = ctypes.CDLL(str(path))
        library.saccade_layout.restype = ctypes.POINTER(ctypes.c_int64)
        library.saccade_layout.argtypes = [ctypes.POINTER(ctypes.c_int64)]
        count = ctypes.c_int64()
        numbers = library.saccade_layout(count)
        if difference := next(differences(numbers[: count.value]), None):
            raise RefusedError(f"its calls are laid out otherwise: {difference}")
        library.saccade_instruction_set.restype = ctypes.c_char_p
        library.saccade_use.argtypes = [ctypes.c_char_p]
        library.saccade_checksum.restype = ctypes.c_uint64
        library.saccade_walk.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for name in ("key_only", "feed", "linear"):
            function = getattr(library, f"saccade_{name}_packed")
            function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_void_p, ctypes.c_size_t]
        for name, structure in CALLS.items():
            for direction in ("forward",) if name in FORWARD_ONLY else ("forward", "backward"):
                function = getattr(library, f"saccade_{name}_{direction}")
                function.argtypes = [ctypes.POINTER(structure), ctypes.c_size_t]
    except (OSError, AttributeError) as error:
        raise RefusedError(f"it does not load: {error}") from None
    return library
