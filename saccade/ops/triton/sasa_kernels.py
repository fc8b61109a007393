"""The kernels of local attention: forward, gradients of the queries, gradients of the keys.

`saccade.ops.triton.sasa` says what they compute and launches them. A program owns BLOCK pixels n of
one head of one image; the grid is (blocks of pixels, heads, images).
"""

from typing import no_type_check

import triton
import triton.language as tl

from saccade.ops.triton.tune import tuned

# `no_type_check` keeps run-time checkers of annotations away: arguments of a kernel are symbols.


@triton.jit
@no_type_check
def _layout_of(n, c, N, d: tl.constexpr, CHANNELS_LAST: tl.constexpr):
    """The offsets of this program's head, of its pixels n and channels c, and a pixel's step.

    A tensor may hold more than 2^31 numbers, an image may not: the tile takes a register a number.
    """
    heads, head, image = tl.num_programs(1), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if CHANNELS_LAST:
        C = heads * d
        return image * C * N + head * d, n[:, None] * C + c[None, :], C
    else:  # noqa: RET505 (the branches are alternatives of the compiler)
        return (image * heads + head) * d * N, c[None, :] * N + n[:, None], 1


@triton.jit
@no_type_check
def _position(row, col, head, a, b, c, d: tl.constexpr, WINDOW: tl.constexpr):
    """r of the offset (a, b), one number per channel."""
    half = d // 2
    row += (head * WINDOW + a) * half + c
    col += (head * WINDOW + b) * half + c - half
    r = tl.load(row, mask=c < half, other=0) + tl.load(col, mask=(c >= half) & (c < d), other=0)
    return r[None, :]


@tuned("d", "WINDOW", "CHANNELS_LAST", "MASK")
@triton.jit
@no_type_check
def forward(
    q, k, v, row, col, y, lse, H, W, tables,
    d: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = lse.dtype.element_ty
    N = H * W
    head = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, D)
    i, j, own = n // W, n % W, n < N
    plane, here, step = _layout_of(n, c, N, d, CHANNELS_LAST)
    q += plane
    v += plane
    y += plane
    if k is not None:
        k += plane
    own_c = own[:, None] & (c < d)[None, :]
    q_n = tl.load(q + here, mask=own_c, other=0).to(wide)
    m = tl.full((BLOCK,), -3.4e38, wide)  # the maximum so far
    total = tl.zeros((BLOCK,), wide)
    y_n = tl.zeros((BLOCK, D), wide)
    for a in range(WINDOW):
        for b in range(WINDOW):
            di, dj = a - WINDOW // 2, b - WINDOW // 2
            inside = own & (i + di >= 0) & (i + di < H) & (j + dj >= 0) & (j + dj < W)
            near = (di * W + dj) * step
            inside_c = inside[:, None] & (c < d)[None, :]
            key = tl.zeros((BLOCK, D), wide)
            if k is not None:
                key += tl.load(k + near + here, mask=inside_c, other=0)
            if row is not None:
                key += _position(row, col, head % tables, a, b, c, d, WINDOW)
            s = tl.sum(q_n * key, 1)
            if MASK:
                s = tl.where(inside, s, float("-inf"))
            larger = tl.maximum(m, s)
            shrink, e = tl.exp(m - larger), tl.exp(s - larger)
            v_ab = tl.load(v + near + here, mask=inside_c, other=0).to(wide)
            y_n = y_n * shrink[:, None] + e[:, None] * v_ab
            total = total * shrink + e
            m = larger
    total = tl.where(own, total, 1)
    tl.store(y + here, y_n / total[:, None], mask=own_c)
    lse += (tl.program_id(2) * tl.num_programs(1) + head).to(tl.int64) * N
    tl.store(lse + n, m + tl.log(total), mask=own)


@tuned("d", "WINDOW", "CHANNELS_LAST", "MASK")
@triton.jit
@no_type_check
def queries(
    g, q, k, v, row, col, y, lse, dq, delta, dr, H, W, tables,
    d: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    D: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dq and D of the own pixels, and their part of drow and dcol."""
    wide: tl.constexpr = lse.dtype.element_ty
    N = H * W
    head = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, D)
    i, j, own = n // W, n % W, n < N
    plane, here, step = _layout_of(n, c, N, d, CHANNELS_LAST)
    g += plane
    q += plane
    v += plane
    y += plane
    dq += plane
    if k is not None:
        k += plane
    own_c = own[:, None] & (c < d)[None, :]
    q_n = tl.load(q + here, mask=own_c, other=0).to(wide)
    g_n = tl.load(g + here, mask=own_c, other=0).to(wide)
    line = (tl.program_id(2) * tl.num_programs(1) + head).to(tl.int64) * N + n
    lse_n = tl.load(lse + line, mask=own, other=0)
    D_n = tl.sum(g_n * tl.load(y + here, mask=own_c, other=0).to(wide), 1)
    tl.store(delta + line, D_n, mask=own)

    dq_n = tl.zeros((BLOCK, D), wide)
    side = tl.arange(0, SIDE)[None, :]
    ds_col = tl.zeros((BLOCK, SIDE), wide)  # sums over a, for every b
    if row is not None:  # this program's 2 k rows of partial sums
        program = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        program = program.to(tl.int64) * tl.num_programs(1) + head
        half = d // 2
        dr += program * 2 * WINDOW * half
    for a in range(WINDOW):
        ds_row = tl.zeros((BLOCK,), wide)
        for b in range(WINDOW):
            di, dj = a - WINDOW // 2, b - WINDOW // 2
            inside = own & (i + di >= 0) & (i + di < H) & (j + dj >= 0) & (j + dj < W)
            near = (di * W + dj) * step
            inside_c = inside[:, None] & (c < d)[None, :]
            key = tl.zeros((BLOCK, D), wide)
            if k is not None:
                key += tl.load(k + near + here, mask=inside_c, other=0)
            if row is not None:
                key += _position(row, col, head % tables, a, b, c, d, WINDOW)
            s = tl.sum(q_n * key, 1)
            if MASK:
                s = tl.where(inside, s, float("-inf"))
            t = tl.sum(g_n * tl.load(v + near + here, mask=inside_c, other=0).to(wide), 1)
            ds = tl.exp(s - lse_n) * (t - D_n)
            dq_n += ds[:, None] * key
            ds_row += ds
            ds_col += tl.where(side == b, ds[:, None], 0)
        if row is not None:
            tl.store(dr + a * half + c, tl.sum(ds_row[:, None] * q_n, 0), mask=c < half)
    tl.store(dq + here, dq_n, mask=own_c)
    if row is not None:
        for b in range(WINDOW):
            ds_b = tl.sum(tl.where(side == b, ds_col, 0), 1)
            place = dr + (WINDOW + b) * half + c - half
            tl.store(place, tl.sum(ds_b[:, None] * q_n, 0), mask=(c >= half) & (c < d))


@tuned("d", "WINDOW", "CHANNELS_LAST")
@triton.jit
@no_type_check
def keys(
    g, q, k, v, row, col, lse, delta, dk, dv, H, W, tables,
    d: tl.constexpr, WINDOW: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dk and dv of the own pixels: the pixel that sees them at offset (a, b) is n - (a, b)."""
    wide: tl.constexpr = lse.dtype.element_ty
    N = H * W
    head = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, D)
    i, j, own = n // W, n % W, n < N
    plane, here, step = _layout_of(n, c, N, d, CHANNELS_LAST)
    g += plane
    q += plane
    v += plane
    dv += plane
    if k is not None:
        k += plane
        dk += plane
    own_c = own[:, None] & (c < d)[None, :]
    line = (tl.program_id(2) * tl.num_programs(1) + head).to(tl.int64) * N
    k_n = tl.zeros((BLOCK, D), wide)
    v_n = tl.zeros((BLOCK, D), wide)
    dk_n = tl.zeros((BLOCK, D), wide)
    dv_n = tl.zeros((BLOCK, D), wide)
    if k is not None:
        k_n += tl.load(k + here, mask=own_c, other=0)
        v_n += tl.load(v + here, mask=own_c, other=0)
    for a in range(WINDOW):
        for b in range(WINDOW):
            di, dj = WINDOW // 2 - a, WINDOW // 2 - b
            inside = own & (i + di >= 0) & (i + di < H) & (j + dj >= 0) & (j + dj < W)
            near = di * W + dj
            inside_c = inside[:, None] & (c < d)[None, :]
            q_ab = tl.load(q + near * step + here, mask=inside_c, other=0).to(wide)
            g_ab = tl.load(g + near * step + here, mask=inside_c, other=0).to(wide)
            key = k_n
            if row is not None:
                key = key + _position(row, col, head % tables, a, b, c, d, WINDOW)
            s = tl.sum(q_ab * key, 1)
            p = tl.exp(s - tl.load(lse + line + near + n, mask=inside, other=float("inf")))
            dv_n += p[:, None] * g_ab
            if k is not None:
                D_ab = tl.load(delta + line + near + n, mask=inside, other=0)
                ds = p * (tl.sum(g_ab * v_n, 1) - D_ab)
                dk_n += ds[:, None] * q_ab
    tl.store(dv + here, dv_n, mask=own_c)
    if k is not None:
        tl.store(dk + here, dk_n, mask=own_c)
