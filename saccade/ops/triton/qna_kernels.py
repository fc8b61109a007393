"""The kernels of learned-query aggregation: forward, gradients by windows, gradients by pixels.

`saccade.ops.triton.qna` says what they compute and launches them. A program owns BLOCK windows (or
pixels) n of HEADS heads of one image; the grid is (blocks, groups of heads, images), and where the
queries are not folded (groups of heads x queries) in the middle.

Tiles of scores are (BLOCK, QUERIES, HEADS), tiles of values (BLOCK, HEADS, D).
"""

from typing import no_type_check

import triton
import triton.language as tl

from saccade.ops.triton.tune import tuned

# `no_type_check` keeps run-time checkers of annotations away: arguments of a kernel are symbols.


@triton.jit
@no_type_check
def _scores(
    query, group, heads: tl.constexpr, L: tl.constexpr,
    QUERIES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Offsets within a pixel of the queries from one on and the heads of a group; the real ones."""
    query += tl.arange(0, QUERIES)[None, :, None]
    head = group * HEADS + tl.arange(0, HEADS)[None, None, :]
    return query * heads + head, (query < L) & (head < heads)


@triton.jit
@no_type_check
def _values(group, heads: tl.constexpr, d: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    """Offsets within a pixel of the channels of a group of heads; the real ones."""
    head = group * HEADS + tl.arange(0, HEADS)[None, :, None]
    c = tl.arange(0, D)[None, None, :]
    return head * d + c, (head < heads) & (c < d)


@tuned("d", "heads", "L", "WINDOW", "STRIDE", "FOLD")
@triton.jit
@no_type_check
def forward(
    s, v, rpe, ws, z, m, rest, H, W, Ho, Wo,
    d: tl.constexpr, heads: tl.constexpr, L: tl.constexpr, WINDOW: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, FOLD: tl.constexpr,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = m.dtype.element_ty
    apart: tl.constexpr = 1 if FOLD else L  # results of a window
    query, group = tl.program_id(1) % apart, tl.program_id(1) // apart
    image = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, own = n // Wo * STRIDE - PADDING, n % Wo * STRIDE - PADDING, n < Ho * Wo
    scores, is_score = _scores(query, group, heads, L, QUERIES, HEADS)
    values, is_value = _values(group, heads, d, HEADS, D)
    s += image * H * W * (L * heads)
    v += image * H * W * (heads * d)
    z += (image * Ho * Wo * apart + query) * (heads * d)
    m += image * Ho * Wo * (L * heads)
    rest += image * Ho * Wo * (L * heads)
    own_score = own[:, None, None] & is_score

    m_n = tl.full((BLOCK, QUERIES, HEADS), -3.4e38, dtype)
    total = tl.zeros((BLOCK, QUERIES, HEADS), dtype)
    for a in range(WINDOW):
        for b in range(WINDOW):
            inside = own & (i + a >= 0) & (i + a < H) & (j + b >= 0) & (j + b < W)
            pixel = ((i + a) * W + j + b)[:, None, None]
            mask = inside[:, None, None] & is_score
            s_o = tl.load(s + pixel * (L * heads) + scores, mask=mask, other=float("-inf"))
            r = tl.load(rpe + (a * WINDOW + b) * L * heads + scores, mask=is_score, other=0)
            s_o, r = s_o.to(dtype), r.to(dtype)
            larger = tl.maximum(m_n, s_o + r)
            # s - m comes first: near the maximum, where it matters, that is exact.
            total = total * tl.exp(m_n - larger) + tl.exp(s_o - larger + r)
            m_n = larger
    rest_n = 1 / tl.where(own_score, total, 1)

    z_n = tl.zeros((BLOCK, HEADS, D), dtype)
    for a in range(WINDOW):
        for b in range(WINDOW):
            inside = own & (i + a >= 0) & (i + a < H) & (j + b >= 0) & (j + b < W)
            pixel = ((i + a) * W + j + b)[:, None, None]
            table = (a * WINDOW + b) * L * heads + scores
            mask = inside[:, None, None] & is_score
            s_o = tl.load(s + pixel * (L * heads) + scores, mask=mask, other=float("-inf"))
            r = tl.load(rpe + table, mask=is_score, other=0).to(dtype)
            c = tl.exp(s_o.to(dtype) - m_n + r) * rest_n
            if ws is not None:
                c *= tl.load(ws + table, mask=is_score, other=0)
            mask = inside[:, None, None] & is_value
            v_o = tl.load(v + pixel * (heads * d) + values, mask=mask, other=0).to(dtype)
            z_n += tl.sum(c, 1)[:, :, None] * v_o

    here = n[:, None, None] * (L * heads) + scores
    tl.store(m + here, m_n, mask=own_score)
    tl.store(rest + here, rest_n, mask=own_score)
    place = z + n[:, None, None] * (apart * heads * d) + values
    tl.store(place, z_n, mask=own[:, None, None] & is_value)


@tuned("d", "heads", "L", "WINDOW", "STRIDE", "FOLD")
@triton.jit
@no_type_check
def windows(
    g, s, v, rpe, ws, m, rest, delta, sums, H, W, Ho, Wo,
    d: tl.constexpr, heads: tl.constexpr, L: tl.constexpr, WINDOW: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, FOLD: tl.constexpr,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """D of the own windows, and their part of U and X."""
    dtype: tl.constexpr = m.dtype.element_ty
    apart: tl.constexpr = 1 if FOLD else L
    query, group = tl.program_id(1) % apart, tl.program_id(1) // apart
    image = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, own = n // Wo * STRIDE - PADDING, n % Wo * STRIDE - PADDING, n < Ho * Wo
    scores, is_score = _scores(query, group, heads, L, QUERIES, HEADS)
    values, is_value = _values(group, heads, d, HEADS, D)
    s += image * H * W * (L * heads)
    v += image * H * W * (heads * d)
    g += (image * Ho * Wo * apart + query) * (heads * d)
    here = n[:, None, None] * (L * heads) + scores
    own_score = own[:, None, None] & is_score
    m_n = tl.load(m + image * Ho * Wo * (L * heads) + here, mask=own_score, other=0)
    rest_n = tl.load(rest + image * Ho * Wo * (L * heads) + here, mask=own_score, other=0)
    place = g + n[:, None, None] * (apart * heads * d) + values
    g_n = tl.load(place, mask=own[:, None, None] & is_value, other=0).to(dtype)
    program = image * tl.num_programs(0) + tl.program_id(0)
    U = sums + program * 2 * (WINDOW * WINDOW * L * heads) + scores
    X = U + WINDOW * WINDOW * L * heads

    D_n = tl.zeros((BLOCK, QUERIES, HEADS), dtype)
    for a in range(WINDOW):
        for b in range(WINDOW):
            inside = own & (i + a >= 0) & (i + a < H) & (j + b >= 0) & (j + b < W)
            pixel = ((i + a) * W + j + b)[:, None, None]
            offset = (a * WINDOW + b) * L * heads
            mask = inside[:, None, None] & is_score
            s_o = tl.load(s + pixel * (L * heads) + scores, mask=mask, other=float("-inf"))
            r = tl.load(rpe + offset + scores, mask=is_score, other=0).to(dtype)
            mask = inside[:, None, None] & is_value
            v_o = tl.load(v + pixel * (heads * d) + values, mask=mask, other=0).to(dtype)
            t = tl.sum(g_n * v_o, 2)
            pt = tl.exp(s_o.to(dtype) - m_n + r) * rest_n * t[:, None, :]
            tl.store(U + offset, tl.sum(pt, 0)[None, :, :], mask=is_score)
            if ws is not None:
                pt *= tl.load(ws + offset + scores, mask=is_score, other=0)
            D_n += pt
    tl.store(delta + image * Ho * Wo * (L * heads) + here, D_n, mask=own_score)

    D_n *= rest_n
    for a in range(WINDOW):
        for b in range(WINDOW):
            inside = own & (i + a >= 0) & (i + a < H) & (j + b >= 0) & (j + b < W)
            pixel = ((i + a) * W + j + b)[:, None, None]
            offset = (a * WINDOW + b) * L * heads
            mask = inside[:, None, None] & is_score
            s_o = tl.load(s + pixel * (L * heads) + scores, mask=mask, other=float("-inf"))
            r = tl.load(rpe + offset + scores, mask=is_score, other=0).to(dtype)
            pD = tl.exp(s_o.to(dtype) - m_n + r) * D_n
            tl.store(X + offset, tl.sum(pD, 0)[None, :, :], mask=is_score)


@tuned("d", "heads", "L", "WINDOW", "STRIDE", "FOLD")
@triton.jit
@no_type_check
def pixels(
    g, s, v, rpe, ws, m, rest, delta, ds, dv, H, W, Ho, Wo,
    d: tl.constexpr, heads: tl.constexpr, L: tl.constexpr, WINDOW: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, FOLD: tl.constexpr,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ds and dv of the own pixels."""
    dtype: tl.constexpr = m.dtype.element_ty
    apart: tl.constexpr = 1 if FOLD else L
    steps: tl.constexpr = (WINDOW + STRIDE - 1) // STRIDE
    group, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j, own = n // W + PADDING, n % W + PADDING, n < H * W
    g += image * Ho * Wo * (apart * heads * d)
    m += image * Ho * Wo * (L * heads)
    rest += image * Ho * Wo * (L * heads)
    delta += image * Ho * Wo * (L * heads)
    s += image * H * W * (L * heads)
    ds += image * H * W * (L * heads)
    values, is_value = _values(group, heads, d, HEADS, D)
    v += image * H * W * (heads * d)
    dv += image * H * W * (heads * d)
    here = n[:, None, None] * (heads * d) + values
    own_value = own[:, None, None] & is_value
    v_n = tl.load(v + here, mask=own_value, other=0).to(dtype)
    dv_n = tl.zeros((BLOCK, HEADS, D), dtype)
    for query in range(apart):
        scores, is_score = _scores(query, group, heads, L, QUERIES, HEADS)
        own_score = own[:, None, None] & is_score
        s_n = tl.load(s + n[:, None, None] * (L * heads) + scores, mask=own_score, other=0)
        s_n = s_n.to(dtype)
        ds_n = tl.zeros((BLOCK, QUERIES, HEADS), dtype)
        for step_a in range(steps):
            for step_b in range(steps):
                # Window (wi, wj) sees the pixel at its offset (a, b).
                a, b = i % STRIDE + STRIDE * step_a, j % STRIDE + STRIDE * step_b
                wi, wj = i // STRIDE - step_a, j // STRIDE - step_b
                inside = own & (a < WINDOW) & (b < WINDOW)
                inside &= (wi >= 0) & (wi < Ho) & (wj >= 0) & (wj < Wo)
                window = (wi * Wo + wj)[:, None, None]
                mask = inside[:, None, None] & is_score
                near = window * (L * heads) + scores
                table = ((a * WINDOW + b) * (L * heads))[:, None, None] + scores
                r = tl.load(rpe + table, mask=mask, other=0).to(dtype)
                m_w = tl.load(m + near, mask=mask, other=float("inf"))
                p = tl.exp(s_n - m_w + r) * tl.load(rest + near, mask=mask, other=0)
                c = p
                if ws is not None:
                    c = p * tl.load(ws + table, mask=mask, other=0)
                mask_g = inside[:, None, None] & is_value
                place = g + (window * apart + query) * (heads * d) + values
                g_w = tl.load(place, mask=mask_g, other=0).to(dtype)
                t = tl.sum(g_w * v_n, 2)
                dv_n += tl.sum(c, 1)[:, :, None] * g_w
                ds_n += c * t[:, None, :] - p * tl.load(delta + near, mask=mask, other=0)
        tl.store(ds + n[:, None, None] * (L * heads) + scores, ds_n, mask=own_score)
    tl.store(dv + here, dv_n, mask=own_value)
