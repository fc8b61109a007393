"""The interface to C++: the structures of src/call.h, its limits, and the call.

Nothing is declared here a second time: fields, limits and codes are read from the header
(header.py), and `differences` compares the compiler's layout of them with that of ctypes.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native import header

_HEADER = header.read()
_KINDS: dict[str, Any] = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    header.POINTER: ctypes.c_void_p,
}

LIMITS = {name.lower(): value for name, value in _HEADER.limits.items()}  # as `sasa_window`
TYPES = {getattr(torch, name.lower()): code for name, code in _HEADER.enums["Type"].items()}
REFUSALS = {
    "NO_MEMORY": (MemoryError, "no memory for the kernels' scratch"),
    "OTHER_SIZE": (RuntimeError, "the library expects a call of another size; build it anew"),
    "OUT_OF_LIMITS": (ValueError, "the kernel does not take such a call"),
}  # the exception for each Result but DONE
_REFUSALS = {code: REFUSALS[name] for name, code in _HEADER.enums["Result"].items() if code}


def _fields(name: str) -> tuple[tuple[str, Any], ...]:
    return tuple((field, _KINDS[kind]) for field, kind in _HEADER.structures[name].items())


class Map(ctypes.Structure):
    """A tensor of four axes, batch, channel, row, column, wherever they lie in memory."""

    _fields_ = _fields("Map")

    @classmethod
    def of(cls, t: Tensor | None) -> "Map":
        return cls() if t is None else cls(t.data_ptr(), *t.stride())


_KINDS["Map"] = Map


def _structure(name: str) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": _fields(name)})


(
    Sasa, Qna, Summary, Linear, Feed, LayerNorm, KeyOnly, Convolution, Windows, Moments, Branches,
    Block,
) = (_structure(name) for name in _HEADER.structures if name != "Map")  # fmt: skip
CALLS = {
    "sasa": Sasa, "qna": Qna, "summary": Summary, "linear": Linear, "feed": Feed,
    "layer_norm": LayerNorm, "key_only": KeyOnly, "convolution": Convolution, "windows": Windows,
    "moments": Moments, "branches": Branches, "block": Block,
}  # fmt: skip
FORWARD_ONLY = ("layer_norm", "key_only", "convolution", "windows")  # for inference
STRUCTURES = {structure.__name__: structure for structure in (Map, *CALLS.values())}
if list(STRUCTURES) != list(_HEADER.structures):
    raise ImportError(f"call.py: call.h has {[*_HEADER.structures]}, here are {[*STRUCTURES]}")


def differences(layout: Sequence[int]) -> Iterator[str]:
    """Where the library's structures, as its `saccade_layout` gives them, differ from these."""
    numbers = iter(layout)
    for name, structure in STRUCTURES.items():
        fields = [field for field, *_ in structure._fields_]
        size, count = next(numbers, -1), next(numbers, -1)
        expected = ctypes.sizeof(structure)
        if (size, count) != (expected, len(fields)):
            yield f"{name} has {count} fields in {size} bytes, not {len(fields)} in {expected}"
            return
        for field in fields:
            ours = getattr(structure, field)
            at, size = next(numbers, -1), next(numbers, -1)
            if (at, size) != (ours.offset, ours.size):
                yield f"{name}.{field} is {size} bytes at {at}, not {ours.size} at {ours.offset}"
    if next(numbers, None) is not None:
        yield "there are more structures than call.h has"


def run(name: str, call: ctypes.Structure) -> None:
    if recording.recorder is not None:
        recording.recorder.note(name, call)
    code = getattr(native.library(), name)(ctypes.byref(call), ctypes.sizeof(call))
    if code:
        error, why = _REFUSALS[code]
        raise error(f"{name}: {why}, got {_described(call)}")


class _Recording(threading.local):
    """The recorder of this thread's calls (`saccade.ops.native.walk`), or None."""

    recorder: Any = None


recording = _Recording()


def fresh(like: Tensor, *shape: int) -> Tensor:
    """A dense tensor for a kernel to fill; while calls are recorded, in memory that is reused."""
    if recording.recorder is not None:
        return recording.recorder.room(like, shape)
    return like.new_empty(shape)


def half() -> bool:
    """Whether products are to be of bfloat16, with sums in fp32."""
    return recording.recorder is not None and recording.recorder.half


def _described(call: ctypes.Structure) -> str:
    """The sizes in a call, for error messages."""
    values = ((field, getattr(call, field)) for field, *_ in call._fields_)
    kinds = _HEADER.structures[type(call).__name__]
    return " ".join(f"{field}={value}" for field, value in values if kinds[field] == "int32_t")


def pointer(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()
