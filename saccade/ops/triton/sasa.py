"""Local attention (SASA) on GPU, forward and backward.

    s(ab) = q . (k(ab) + r(a-i, b-j))     y = sum over the window of softmax(s) v
    r(u, v) = concat(row_u, col_v)

A position is added to the key before the one product with q: content and position cost a single
sum over channels. The softmax is taken on the way (the sum so far is rescaled when a larger logit
comes), and of the weights only their log-sum-exp is kept. Backward, with g = dy:

    p = exp(s - lse)    t(ab) = g . v(ab)    D = g . y    ds = p (t - D)

    of a query     dq = sum of ds (k + r) over the keys that it sees
    of a key       dk = sum of ds q,  dv = sum of p g  over the queries that see it
    of a position  drow_u = sum of ds q over all pixels and over v; dcol_v likewise

The first two are gathers. The third is summed per program, then over the programs.

Pixels are numbered in reading order, so a tile has no idle lanes at the right edge of small maps.
Sums are in fp32 (float64 for float64), whatever mixture of dtypes comes in.
"""

import torch
from torch import Tensor

from saccade.ops import triton
from saccade.ops.operator import Kernel
from saccade.ops.precision import wide

WIDEST = 128  # head width


def _takes(
    q: Tensor, k: Tensor | None, v: Tensor, row: Tensor | None, col: Tensor | None,
    heads: int, window: int, border: str,
) -> bool:  # fmt: skip
    return triton.reaches(q) and 3 <= window <= 15 and q.shape[1] // heads <= WIDEST


def _keeps(out, q, k, v, row, col, heads, window, border) -> tuple[Tensor]:
    """Room for the log-sum-exp of every pixel's logits."""
    B, _, H, W = q.shape
    return (q.new_empty(B, heads, H * W, dtype=wide(q.dtype)),)


def _forward(out, residuals, q, k, v, row, col, heads, window, border) -> None:
    kernels = triton.kernels("sasa")
    (lse,) = residuals or _keeps(out, q, k, v, row, col, heads, window, border)
    y = out if _readable(out) else torch.empty_like(out, memory_format=torch.contiguous_format)
    kernels.forward[_grid(q, heads)](
        *_alike(out, q, k, v), row, col, y, lse, **_shared(out, row, heads, window),
        MASK=border == "mask",
    )  # fmt: skip
    if y is not out:
        out.copy_(y)


def _backward(grad, residuals, needs, q, k, v, row, col, heads, window, border):
    kernels = triton.kernels("sasa")
    y, lse = residuals
    layout = _layout(y)
    dq, dk, dv = (
        None if x is None else torch.empty_like(x, memory_format=layout) for x in (q, k, v)
    )
    drow, dcol = (None if x is None else torch.empty_like(x) for x in (row, col))
    grid, shared = _grid(q, heads), _shared(y, row, heads, window)
    maps = _alike(y, grad, q, k, v)
    delta, dr = torch.empty_like(lse), None
    if row is not None:
        dr = lse.new_empty(grid[2], grid[0], heads, 2, window, row.shape[2])
    kernels.queries[grid](
        *maps, row, col, *_alike(y, y), lse, dq, delta, dr, **shared,
        MASK=border == "mask", SIDE=triton.power_of_two(window),
    )  # fmt: skip
    kernels.keys[grid](*maps, row, col, lse, delta, dk, dv, **shared)
    if drow is not None and dcol is not None and dr is not None:
        dr = dr.sum((0, 1))  # heads 2 window half
        dr = dr.sum(0, keepdim=True) if row.shape[0] == 1 else dr
        drow.copy_(dr[:, 0])
        dcol.copy_(dr[:, 1])
    return dq, dk, dv, drow, dcol


def _readable(x: Tensor) -> bool:
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def _layout(q: Tensor) -> torch.memory_format:
    """Both layouts are read as they are; anything else is copied to the first."""
    dense = q.is_contiguous()
    last = not dense and q.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _alike(q: Tensor, *maps: Tensor | None) -> list[Tensor | None]:
    """The maps in the layout of q."""
    layout = _layout(q)
    return [None if x is None else x.contiguous(memory_format=layout) for x in maps]


def _grid(q: Tensor, heads: int) -> tuple[int, int, int]:
    B, C, H, W = q.shape
    return -(-H * W // triton.block(C // heads)), heads, B


def _shared(q: Tensor, row: Tensor | None, heads: int, window: int) -> dict:
    """The arguments that all kernels take by the same names."""
    _, C, H, W = q.shape
    d = C // heads
    return {
        "H": H, "W": W, "tables": 1 if row is None else row.shape[0],
        "d": d, "WINDOW": window, "CHANNELS_LAST": _layout(q) == torch.channels_last,
        "D": triton.power_of_two(d), "BLOCK": triton.block(d),
    }  # fmt: skip


TRITON = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"maps on a GPU, windows from 3 to 15, heads up to {WIDEST} wide",
    ready=triton.ready,
    device=None,
    dtypes=None,
    keeps=_keeps,
    saves=True,
    strided=("q", "k", "v", "grad"),
)
