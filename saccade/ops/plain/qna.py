"""Learned-query aggregation offset by offset, without copies of windows or attention maps.

    P_l(w, o) = exp(s_l(w + o) + r_l(o)) / sum over o' of exp(s_l(w + o') + r_l(o'))
    z(w)      = sum over o of c(w, o) v(w + o),     c(w, o) = sum over l of P_l(w, o) Ws_l(o)

Memory does not grow with k, forward or backward. The softmax is exact, for the maximum of each
window is subtracted. The queries are folded into one coefficient per head before V is touched, so
V's work does not grow with L. Inside, V and z carry an axis for the queries, of length 1 where they
share it. Functions that run at every offset have no type checks even in tests: they run too often.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from saccade.ops.operator import Kernel
from saccade.ops.precision import wide


@no_type_check
class _Step(NamedTuple):
    """One offset: the windows that have it inside the map, and the pixels they see there."""

    offset: tuple[int, int]
    windows: tuple[slice, ...]
    pixels: tuple[slice, ...]


@no_type_check
def _walk(
    size: Sequence[int], grid: Sequence[int], k: int, stride: int, padding: int
) -> Iterator[_Step]:
    """All offsets that some window has inside a map of `size`; `grid` counts the windows."""
    for offset in product(range(k), range(k)):
        windows, pixels = [slice(None)], [slice(None)]
        for pixels_along, windows_along, o in zip(size, grid, offset, strict=True):
            first = max(0, -((o - padding) // stride))  # window i sees pixel i stride + o - padding
            last = min(windows_along, (pixels_along - 1 + padding - o) // stride + 1) - 1
            windows.append(slice(first, last + 1))
            start = first * stride + o - padding
            pixels.append(slice(start, start + (last - first) * stride + 1, stride))
        if all(w.start is None or w.start < w.stop for w in windows):
            yield _Step(offset, tuple(windows), tuple(pixels))


@no_type_check
def _along(table: Tensor, step: _Step) -> Tensor:
    """A table's entry for every window of a row: so that adding it runs along memory."""
    columns = step.windows[2].stop - step.windows[2].start
    return table[step.offset].expand(columns, -1, -1).contiguous()


@no_type_check
def _exp(s: Tensor, m: Tensor, rpe: Tensor, step: _Step) -> Tensor:
    """exp(s + r - m). s - m comes first: near the maximum, where it matters, that is exact."""
    return (s[step.pixels] - m[step.windows]).add_(_along(rpe, step)).exp_()


@no_type_check
def _fold(c: Tensor) -> Tensor:
    """The sum over the queries, as an axis of length 1. (Tensor.sum is slow for a few.)"""
    return reduce(torch.add, c.split(1, 3))


def _keeps(out, s, v, rpe, ws, stride, padding, fold) -> tuple[Tensor, Tensor]:
    """Room for the maximum m of each window, and for 1 / sum of exp(s + r - m)."""
    shape, dtype = (*out.shape[:3], *s.shape[3:]), wide(torch.promote_types(s.dtype, v.dtype))
    return s.new_empty(shape, dtype=dtype), s.new_empty(shape, dtype=dtype)


def _forward(out, residuals, s, v, rpe, ws, stride, padding, fold) -> None:
    m, total = residuals or _keeps(out, s, v, rpe, ws, stride, padding, fold)
    s, (rpe, ws) = s.to(m.dtype), _tables(rpe, ws, m.dtype)
    steps = list(_walk(s.shape[1:3], out.shape[1:3], rpe.shape[0], stride, padding))
    m.fill_(-torch.inf)
    for step in steps:
        m_o = m[step.windows]
        torch.maximum(m_o, s[step.pixels] + _along(rpe, step), out=m_o)
    total.zero_()
    for step in steps:
        total[step.windows].add_(_exp(s, m, rpe, step))
    inverse = total.reciprocal_()
    z = torch.zeros_like(out, dtype=m.dtype)
    by_query = z.unsqueeze(3) if fold else z
    for step in steps:
        c = _exp(s, m, rpe, step).mul_(inverse[step.windows]).mul_(_along(ws, step))
        v_o = v[step.pixels].unsqueeze(3).to(s.dtype)
        by_query[step.windows].addcmul_((_fold(c) if fold else c)[..., None], v_o)
    out.copy_(z)


def _backward(grad, residuals, needs, s, v, rpe, ws, stride, padding, fold):
    """With t = g . v(w + o):  dV = c g,  dWs = P t,  ds = dr = P (Ws t - D), D = sum of P Ws t.

    The first walk reads V; the second, once D is known, works on the small maps alone.
    """
    m, inverse = residuals
    weighs = ws is not None
    s, (rpe, ws) = s.to(m.dtype), _tables(rpe, ws, m.dtype)
    grad = grad.unsqueeze(3) if fold else grad
    steps = list(_walk(s.shape[1:3], grad.shape[1:3], rpe.shape[0], stride, padding))
    ds, drpe, dws, D = (torch.zeros_like(x) for x in (s, rpe, ws, m))
    dv = torch.zeros_like(v, dtype=s.dtype)
    for step in steps:
        p = _exp(s, m, rpe, step).mul_(inverse[step.windows])
        c = p * _along(ws, step)
        g_o = grad[step.windows].to(s.dtype)
        t = (g_o * v[step.pixels].unsqueeze(3)).sum(-1)  # B Ho Wo, 1 or L, h
        if fold:
            dv[step.pixels].addcmul_(_fold(c).squeeze(3)[..., None], g_o.squeeze(3))
        else:
            dv[step.pixels].add_((c[..., None] * g_o).sum(3))
        dws[step.offset] = p.mul_(t).sum((0, 1, 2))
        D[step.windows].add_(c.mul_(t))
        ds[step.pixels].add_(c)
        drpe[step.offset] = c.sum((0, 1, 2))
    D.mul_(inverse)
    for step in steps:
        pd = _exp(s, m, rpe, step).mul_(D[step.windows])
        ds[step.pixels].sub_(pd)
        drpe[step.offset] -= pd.sum((0, 1, 2))
    return ds, dv, drpe, dws if weighs else None


def _tables(rpe: Tensor, ws: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rpe = rpe.to(dtype)
    return rpe, torch.ones_like(rpe) if ws is None else ws.to(dtype)


WALKED = Kernel(
    forward=_forward,
    backward=_backward,
    takes=lambda *inputs: True,
    about="every call",
    device=None,
    dtypes=None,
    keeps=_keeps,
    strided=("s", "v", "grad"),
)
