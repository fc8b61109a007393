"""Local attention (SASA) on CPU by the fused kernel.

    s(ab) = q . k(ab) + q . r(a-i, b-j)     y = sum over the window of softmax(s) v

Only the inputs are saved for the backward: it computes the attention weights again, which is
cheaper than writing and reading them.
"""

from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import LIMITS, TYPES, Map, Sasa, pointer, run
from saccade.ops.operator import Kernel

LEAST, MOST, WIDEST = (LIMITS[f"sasa_{name}"] for name in ("least_window", "window", "head_width"))


def _takes(
    q: Tensor, k: Tensor | None, v: Tensor, row: Tensor | None, col: Tensor | None,
    heads: int, window: int, border: str,
) -> bool:  # fmt: skip
    compares = k is not None or row is not None
    return compares and LEAST <= window <= MOST and q.shape[1] // heads <= WIDEST


def _forward(out, residuals, q, k, v, row, col, heads, window, border) -> None:
    call = _call(q, k, v, row, col, heads, window, border)
    call.out = Map.of(out)
    run("saccade_sasa_forward", call)


def _backward(grad, residuals, needs, q, k, v, row, col, heads, window, border):
    gradients = [None if t is None else torch.empty_like(t) for t in (q, k, v, row, col)]
    dq, dk, dv, drow, dcol = gradients
    call = _call(q, k, v, row, col, heads, window, border)
    call.gout, call.dq, call.dk, call.dv = map(Map.of, (grad, dq, dk, dv))
    call.drow, call.dcol = pointer(drow), pointer(dcol)
    run("saccade_sasa_backward", call)
    return gradients


def _call(q, k, v, row, col, heads, window, border) -> Any:
    B, C, H, W = q.shape
    return Sasa(
        TYPES[q.dtype], torch.get_num_threads(), B, heads, C // heads, H, W, window,
        border == "mask", 1 if row is None else row.shape[0],
        Map.of(q), Map.of(k), Map.of(v), pointer(row), pointer(col),
    )  # fmt: skip


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"windows of {LEAST} to {MOST}, heads up to {WIDEST} wide, k or positions, {list(TYPES)}",
    ready=native.available,
    dtypes=tuple(TYPES),
    strided=("q", "k", "v", "grad"),
)
