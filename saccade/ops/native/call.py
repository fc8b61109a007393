"""What crosses the border to C++: the structures of src/call.h, field by field, and the call."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from saccade.ops.precision import wide

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 2}


class Map(ctypes.Structure):
    """A tensor of four axes, batch, channel, row, column, wherever they lie in memory."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64), ("channel", ctypes.c_int64),
        ("row", ctypes.c_int64), ("column", ctypes.c_int64),
    )  # fmt: skip

    @classmethod
    def of(cls, t: Tensor | None) -> "Map":
        return cls() if t is None else cls(t.data_ptr(), *t.stride())


def _ints(names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int32) for name in names.split()]


def _maps(names: str) -> list[tuple[str, Any]]:
    return [(name, Map) for name in names.split()]


def _pointers(names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names.split()]


class Sasa(ctypes.Structure):
    _fields_ = (
        *_ints("type threads B heads d H W window mask tables"),
        *_maps("q k v"), *_pointers("row col"),
        *_maps("out gout dq dk dv"), *_pointers("drow dcol"),
    )  # fmt: skip


class Qna(ctypes.Structure):
    _fields_ = (
        *_ints("type threads B heads d queries H W Ho Wo window stride padding fold"),
        *_maps("s v"), *_pointers("bias weight"),
        *_maps("out gout ds dv"), *_pointers("dbias dweight"),
    )  # fmt: skip


class Summary(ctypes.Structure):
    _fields_ = (
        *_ints("threads B tokens C heads add"),
        *_pointers("x ask mean lse dmean delta dx dask"),
    )


class Linear(ctypes.Structure):
    _fields_ = (
        *_ints("threads batches rows inputs outputs"),
        *_pointers("x w"),
        ("w_batch", ctypes.c_int64), ("w_output", ctypes.c_int64), ("w_input", ctypes.c_int64),
        *_pointers("b"), ("b_batch", ctypes.c_int64),
        *_pointers("y dw db"),
    )  # fmt: skip


class Feed(ctypes.Structure):
    _fields_ = (
        *_ints("threads B H W inputs hidden outputs tanh"),
        *_pointers("x w1 b1 taps shift w2 b2 h y g dx dw1 db1 dtaps dshift dw2 db2"),
    )


class Block(ctypes.Structure):
    _fields_ = (
        *_ints("threads B H W inputs outputs heads mask"),
        *_maps("x"), *_pointers("wq wk wv row col scale shift y g dx dwq dwk dwv drow dcol"),
    )  # fmt: skip


CALLS = {
    "sasa": Sasa, "qna": Qna, "summary": Summary, "linear": Linear, "feed": Feed, "block": Block,
}  # fmt: skip


def run(name: str, call: ctypes.Structure) -> None:
    from saccade.ops.native import library

    if getattr(library(), name)(ctypes.byref(call)):
        raise MemoryError(f"{name}: no memory for the kernels' scratch")


def table(t: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Small parameters go in whole and wide: contiguous, of the type that sums are kept in."""
    return None if t is None else t.detach().to(wide(dtype)).contiguous()


def like(x: Tensor, *others: Tensor | None) -> Any:
    """Room for the gradients of each, dense; an empty one for what is absent."""
    rest = (x.new_empty(0) if t is None else t.new_empty(t.shape) for t in others)
    return x.new_empty(x.shape), *rest


def alike(x: Tensor, *others: Tensor | None) -> bool:
    """Whether all that are there are float32 and on the device of x: pointers do not say it."""
    there = [x, *(t for t in others if t is not None)]
    return all(t.dtype == torch.float32 and t.device == x.device for t in there)


def pointer(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()
