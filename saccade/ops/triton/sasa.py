"""Local attention (SASA) on GPU, forward and backward.

    s(ab) = q . (k(ab) + r(a-i, b-j))     y = sum over the window of softmax(s) v
    r(u, v) = concat(row_u, col_v)

A position is added to the key before the one product with q: content and position cost a single
sum over channels. The softmax is taken on the way (the sum so far is rescaled when a larger logit
comes), and of the weights only their log-sum-exp is kept. Backward, with g = dy:

    p = exp(s - lse)    t(ab) = g . v(ab)    D = g . y    ds = p (t - D)

    of a query     dq = sum of ds (k + r) over the keys that it sees
    of a key       dk = sum of ds q,  dv = sum of p g  over the queries that see it
    of a position  drow_u = sum of ds q over all pixels and over v; dcol_v alike

The first two are gathers. The third is summed per program, then over the programs.

Pixels are numbered in reading order, so a tile has no idle lanes at the right edge of small maps.
Sums are in fp32 (float64 for float64), whatever mixture of dtypes comes in.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.precision import wide
from saccade.ops.second import second
from saccade.ops.triton import sasa_kernels as kernels
from saccade.ops.triton.tune import block, power_of_two

BORDERS = ("zero", "mask")
WIDEST = 128  # head width


def local_attention(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"] | None,
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"] | None,
    col: Float[Tensor, "r k half"] | None,
    heads: int,
    window: int,
    border: str = "zero",
) -> Float[Tensor, "B C H W"]:
    """Every pixel's weighted mean of the values in its window, in one kernel."""
    return torch.ops.saccade.triton_sasa(q, k, v, row, col, heads, window, border)[0]


def supports(q: Tensor, heads: int, window: int) -> bool:
    """Whether the kernels take such a call (where they can be launched at all)."""
    return (
        q.is_cuda
        and q.is_floating_point()
        and window % 2 == 1
        and 3 <= window <= 15
        and q.shape[1] // heads <= WIDEST
        and q.numel() > 0
    )


# -- operators ------------------------------------------------------------------------------------


@torch.library.custom_op("saccade::triton_sasa", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    heads: int,
    window: int,
    border: str,
) -> tuple[Tensor, Tensor]:
    """y, and the log-sum-exp of every pixel's logits."""
    y, lse = _empty_output(q, k, v, row, col, heads, window, border)
    if y.numel():
        shared = _shared(q, row, heads, window)
        maps, tables = _alike(q, q, k, v), _tables(row, col)
        kernels.forward[_grid(q, heads)](
            *maps, *tables, y, lse, **shared, MASK=border == "mask"
        )  # fmt: skip
    return y, lse


@_forward.register_fake
def _empty_output(q, k, v, row, col, heads, window, border):
    _check(q, k, v, row, col, heads, window, border)
    B, _, H, W = q.shape
    y = torch.empty_like(q, memory_format=_layout(q))
    return y, q.new_empty(B, heads, H * W, dtype=wide(q.dtype))


@torch.library.custom_op("saccade::triton_sasa_backward", mutates_args=())
def _backward(
    g: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    y: Tensor,
    lse: Tensor,
    heads: int,
    window: int,
    border: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, drow, dcol = _empty_gradients(g, q, k, v, row, col)
    if not q.numel():
        return dq, dk, dv, drow.zero_(), dcol.zero_()
    grid, shared = _grid(q, heads), _shared(q, row, heads, window)
    maps, tables = _alike(q, g, q, k, v), _tables(row, col)
    delta, lse = torch.empty_like(lse), lse.contiguous()
    dr = None
    if row is not None:
        dr = lse.new_empty(grid[2], grid[0], heads, 2, window, row.shape[2])
    kernels.queries[grid](
        *maps, *tables, *_alike(q, y), lse, dq, delta, dr, **shared,
        MASK=border == "mask", SIDE=power_of_two(window),
    )  # fmt: skip
    kernels.keys[grid](
        *maps, *tables, lse, delta, None if k is None else dk, dv, **shared
    )  # fmt: skip
    if row is not None and dr is not None:
        dr = dr.sum((0, 1))  # heads 2 window half
        dr = dr.sum(0, keepdim=True) if row.shape[0] == 1 else dr
        drow.copy_(dr[:, 0])
        dcol.copy_(dr[:, 1])
    return dq, dk, dv, drow, dcol


@_backward.register_fake
def _empty_gradients(g, q, k, v, row, col, *_):
    """Room for the gradients; empty ones for absent inputs (an operator returns no None)."""
    maps = (q.new_empty(0) if x is None else torch.empty_like(x, memory_format=_layout(q))
            for x in (q, k, v))  # fmt: skip
    tables = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (row, col))
    return *maps, *tables


def _keep(ctx, inputs, output):
    *tensors, ctx.heads, ctx.window, ctx.border = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, g, _):
    *inputs, y, lse = ctx.saved_tensors
    gradients = torch.ops.saccade.triton_sasa_backward(
        g, *inputs, y, lse, ctx.heads, ctx.window, ctx.border
    )
    kept = (None if x is None else dx for x, dx in zip(inputs, gradients, strict=True))
    return *kept, None, None, None


def _keep_all(ctx, inputs, output):
    *tensors, _, _, ctx.heads, ctx.window, ctx.border = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx, *weights):
    from saccade.ops.sasa import shifted

    def plain(*tensors):
        return shifted(*tensors, ctx.heads, ctx.window, ctx.border)

    g, *tensors = ctx.saved_tensors
    return *second(plain, g, tensors, weights), None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_all)


def _layout(q: Tensor) -> torch.memory_format:
    """Both layouts are read as they are; anything else is copied to the first."""
    dense = q.is_contiguous()
    last = not dense and q.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _alike(q: Tensor, *maps: Tensor | None) -> list[Tensor | None]:
    """The maps in the layout of q."""
    layout = _layout(q)
    return [None if x is None else x.contiguous(memory_format=layout) for x in maps]


def _tables(*tables: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.contiguous() for x in tables]


def _grid(q: Tensor, heads: int) -> tuple[int, int, int]:
    B, C, H, W = q.shape
    return -(-H * W // block(C // heads)), heads, B


def _shared(q: Tensor, row: Tensor | None, heads: int, window: int) -> dict:
    """The arguments that all kernels take by the same names."""
    _, C, H, W = q.shape
    d = C // heads
    return {
        "H": H, "W": W, "tables": 1 if row is None else row.shape[0],
        "d": d, "WINDOW": window, "CHANNELS_LAST": _layout(q) == torch.channels_last,
        "D": power_of_two(d), "BLOCK": block(d),
    }  # fmt: skip


def _check(q, k, v, row, col, heads, window, border) -> None:
    """Refuse what would read outside of the tensors, or has no meaning."""
    here = "local_attention"
    C = q.shape[1]
    if heads < 1 or C % heads:
        raise ValueError(f"{here}: heads must divide the channels, got {C=} {heads=}")
    if window < 1 or window % 2 == 0:
        raise ValueError(f"{here}: window must be odd, got {window=}; try {window + 1}")
    if border not in BORDERS:
        raise ValueError(f"{here}: border must be one of {BORDERS}, got {border=}")
    if any(x is not None and x.shape != q.shape for x in (k, v)):
        raise ValueError(f"{here}: q, k and v must have one shape, got {q.shape=} {v.shape=}")
    if (row is None) != (col is None):
        raise ValueError(f"{here}: row and col come together, got only one of them")
    d = C // heads
    for table in (row, col):
        if table is not None and table.shape not in ((1, window, d / 2), (heads, window, d / 2)):
            raise ValueError(
                f"{here}: row and col must be (1 or {heads}, {window}, {d} / 2), "
                f"got {tuple(table.shape)}"
            )


# -- FLOPs: the products of the equation, as the plain forms count them ---------------------------


def _products(q, k, row, window: int) -> int:
    B, C, H, W = q
    kinds = 1 + (k is not None) + (row is not None)  # p v, q k, q r
    return 2 * kinds * B * C * H * W * window**2


@register_flop_formula(torch.ops.saccade.triton_sasa)
def _flops(q, k, v, row, col, heads, window, *_, **__) -> int:
    return _products(q, k, row, window)


@register_flop_formula(torch.ops.saccade.triton_sasa_backward)
def _flops_backward(g, q, k, v, row, col, y, lse, heads, window, *_, **__) -> int:
    return 2 * _products(q, k, row, window)
