"""Learned-query aggregation (QnA) on GPU, forward and backward.

    P_l(w, o) = softmax over the offsets o of  s_l(w + o) + r_l(o)
    z(w)      = sum over o of c(w, o) v(w + o),     c(w, o) = sum over l of P_l(w, o) Ws_l(o)

l counts the L queries; all of it holds per head, and places outside the map take no part.

The forward walks twice over the offsets of its windows: once over the scores alone, for each
window's own maximum m and sum, and once more with V, which it touches after the queries are folded
into one coefficient per head. m and 1 / sum are kept. Backward, with g = dz and
t(w, o) = g . v(w + o):

    by windows  D_l = sum of P Ws t;  U_l(o) = sum over w of P t;  X_l(o) = sum over w of P D
                dWs = U,  dr = Ws U - X       (summed per program, then over the programs)
    by pixels   ds_l(u) = sum of P (Ws t - D),  dv(u) = sum of c g   over the windows that see u

With a stride a pixel is seen from only every stride-th offset: the walk by pixels takes those.

Scores and values keep their heads together in memory, so a program owns several heads, enough to
read whole lines. Without folding the queries are one more axis of programs, and V is read by each.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.ops import triton
from saccade.ops.operator import Kernel
from saccade.ops.precision import wide

WIDEST = 128  # head width
LINE = 64  # channels that a program owns, if a head has fewer


def _keeps(out, s, v, rpe, ws, stride, padding, fold) -> tuple[Tensor, Tensor]:
    """Room for the maximum m of each window's logits, and for 1 / sum of exp(s + r - m)."""
    shape, dtype = (*out.shape[:3], *s.shape[3:]), wide(torch.promote_types(s.dtype, v.dtype))
    return s.new_empty(shape, dtype=dtype), s.new_empty(shape, dtype=dtype)


def _forward(out, residuals, s, v, rpe, ws, stride, padding, fold) -> None:
    m, rest = residuals or _keeps(out, s, v, rpe, ws, stride, padding, fold)
    shared = _shared(s, v, rpe, out.shape[1:3], stride, padding, fold)
    groups = _groups(shared) * (1 if fold else shared["L"])
    grid = _blocks(shared, "Ho", "Wo"), groups, s.shape[0]
    triton.kernels("qna").forward[grid](s, v, rpe, ws, out, m, rest, **shared)


def _backward(grad, residuals, needs, s, v, rpe, ws, stride, padding, fold):
    kernels, (m, rest) = triton.kernels("qna"), residuals
    ds, dv = torch.empty_like(s), torch.empty_like(v)
    shared = _shared(s, v, rpe, grad.shape[1:3], stride, padding, fold)
    B, blocks, groups = s.shape[0], _blocks(shared, "Ho", "Wo"), _groups(shared)
    inputs = grad, s, v, rpe, ws, m, rest
    delta = torch.empty_like(m)
    sums = m.new_empty(B, blocks, 2, *rpe.shape)
    grid = blocks, groups * (1 if fold else shared["L"]), B
    kernels.windows[grid](*inputs, delta, sums, **shared)
    kernels.pixels[_blocks(shared, "H", "W"), groups, B](*inputs, delta, ds, dv, **shared)
    U, X = sums.sum((0, 1))
    drpe = (U if ws is None else U * ws) - X
    return ds, dv, drpe, None if ws is None else U


def _shared(
    s: Tensor, v: Tensor, rpe: Tensor, grid: Sequence[int], stride: int, padding: int, fold: bool
) -> dict:
    """The arguments that all kernels take by the same names."""
    _, H, W, L, h = s.shape
    k, d = rpe.shape[0], v.shape[4]
    D = triton.power_of_two(d)
    HEADS = min(triton.power_of_two(h), max(1, LINE // D))
    return {
        "H": H, "W": W, "Ho": grid[0], "Wo": grid[1],
        "d": d, "heads": h, "L": L,
        "WINDOW": k, "STRIDE": stride, "PADDING": padding, "FOLD": fold,
        "QUERIES": triton.power_of_two(L) if fold else 1, "HEADS": HEADS, "D": D,
        "BLOCK": triton.block(HEADS * D),
    }  # fmt: skip


def _groups(shared: dict) -> int:
    return -(-shared["heads"] // shared["HEADS"])


def _blocks(shared: dict, height: str, width: str) -> int:
    return -(-shared[height] * shared[width] // shared["BLOCK"])


TRITON = Kernel(
    forward=_forward,
    backward=_backward,
    takes=lambda s, v, *rest: triton.reaches(v) and v.shape[-1] <= WIDEST,
    about=f"maps on a GPU, heads up to {WIDEST} wide",
    ready=triton.ready,
    device=None,
    dtypes=None,
    keeps=_keeps,
)
