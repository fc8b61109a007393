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

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.precision import wide
from saccade.ops.second import second
from saccade.ops.triton import qna_kernels as kernels
from saccade.ops.triton.tune import block, power_of_two

WIDEST = 128  # head width
LINE = 64  # channels that a program owns, if a head has fewer


def aggregate(
    s: Float[Tensor, "B H W L h"],
    v: Float[Tensor, "B H W h d"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:
    """z of every window; with `fold=False` one z per query, not summed."""
    return torch.ops.saccade.triton_qna(s, v, rpe, ws, stride, padding, fold)[0]


def supports(v: Float[Tensor, "B H W h d"]) -> bool:
    """Whether the kernels take such a call (where they can be launched at all)."""
    return v.is_cuda and v.is_floating_point() and v.shape[-1] <= WIDEST and v.numel() > 0


# -- operators ------------------------------------------------------------------------------------


@torch.library.custom_op("saccade::triton_qna", mutates_args=())
def _forward(
    s: Tensor,
    v: Tensor,
    rpe: Tensor,
    ws: Tensor | None,
    stride: int,
    padding: int,
    fold: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """z, the maximum m of each window's logits, and 1 / sum of exp(s + r - m)."""
    z, m, rest = _empty_output(s, v, rpe, ws, stride, padding, fold)
    if z.numel():
        shared = _shared(s, v, rpe, stride, padding, fold)
        groups = _groups(shared) * (1 if fold else shared["L"])
        grid = _blocks(shared, "Ho", "Wo"), groups, s.shape[0]
        kernels.forward[grid](*_dense(s, v, rpe, ws), z, m, rest, **shared)
    return z, m, rest


@_forward.register_fake
def _empty_output(s, v, rpe, ws, stride, padding, fold):
    _check(s, v, rpe, ws, stride, padding)
    B, H, W, L, h = s.shape
    grid = [_count(size, rpe.shape[0], stride, padding) for size in (H, W)]
    kept = wide(torch.promote_types(s.dtype, v.dtype))
    z = v.new_empty(B, *grid, *(() if fold else (L,)), *v.shape[3:])
    return z, *(s.new_empty(B, *grid, L, h, dtype=kept) for _ in range(2))


@torch.library.custom_op("saccade::triton_qna_backward", mutates_args=())
def _backward(
    g: Tensor,
    s: Tensor,
    v: Tensor,
    rpe: Tensor,
    ws: Tensor | None,
    m: Tensor,
    rest: Tensor,
    stride: int,
    padding: int,
    fold: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ds, dv, drpe, dws = _empty_gradients(g, s, v, rpe, ws)
    if not (s.numel() and v.numel()):
        return tuple(x.zero_() for x in (ds, dv, drpe, dws))
    shared = _shared(s, v, rpe, stride, padding, fold)
    B, blocks, groups = s.shape[0], _blocks(shared, "Ho", "Wo"), _groups(shared)
    inputs = _dense(g, s, v, rpe, ws, m, rest)
    delta = m.new_empty(m.shape)
    sums = m.new_empty(B, blocks, 2, *rpe.shape)
    grid = blocks, groups * (1 if fold else shared["L"]), B
    kernels.windows[grid](*inputs, delta, sums, **shared)
    kernels.pixels[_blocks(shared, "H", "W"), groups, B](*inputs, delta, ds, dv, **shared)
    U, X = sums.sum((0, 1))
    drpe.copy_((U if ws is None else U * ws) - X)
    if ws is not None:
        dws.copy_(U)
    return ds, dv, drpe, dws


@_backward.register_fake
def _empty_gradients(g, s, v, rpe, ws, *_):
    """Room for the gradients; an empty one for an absent Ws (an operator returns no None)."""
    dense = (x.new_empty(x.shape) for x in (s, v, rpe))
    return *dense, rpe.new_empty(0 if ws is None else ws.shape)


def _keep(ctx, inputs, output):
    *tensors, ctx.stride, ctx.padding, ctx.fold = inputs
    _, m, rest = output
    ctx.save_for_backward(*tensors, m, rest)


def _differentiate(ctx, g, *_):
    *_, ws, _, _ = ctx.saved_tensors
    ds, dv, drpe, dws = torch.ops.saccade.triton_qna_backward(
        g, *ctx.saved_tensors, ctx.stride, ctx.padding, ctx.fold
    )
    return ds, dv, drpe, None if ws is None else dws, None, None, None


def _keep_all(ctx, inputs, output):
    *tensors, _, _, ctx.stride, ctx.padding, ctx.fold = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx, *weights):
    from saccade.ops.qna import unrolled

    def plain(*tensors):
        return unrolled(*tensors, ctx.stride, ctx.padding, ctx.fold)

    g, *tensors = ctx.saved_tensors
    return *second(plain, g, tensors, weights), None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_all)


def _count(size: int, window: int, stride: int, padding: int) -> int:
    """How many windows stand along a side of the map."""
    return (size + 2 * padding - window) // stride + 1


def _dense(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.contiguous() for x in tensors]


def _shared(s: Tensor, v: Tensor, rpe: Tensor, stride: int, padding: int, fold: bool) -> dict:
    """The arguments that all kernels take by the same names."""
    _, H, W, L, h = s.shape
    k, d = rpe.shape[0], v.shape[4]
    D = power_of_two(d)
    HEADS = min(power_of_two(h), max(1, LINE // D))
    return {
        "H": H, "W": W, "Ho": _count(H, k, stride, padding), "Wo": _count(W, k, stride, padding),
        "d": d, "heads": h, "L": L,
        "WINDOW": k, "STRIDE": stride, "PADDING": padding, "FOLD": fold,
        "QUERIES": power_of_two(L) if fold else 1, "HEADS": HEADS, "D": D,
        "BLOCK": block(HEADS * D),
    }  # fmt: skip


def _groups(shared: dict) -> int:
    return -(-shared["heads"] // shared["HEADS"])


def _blocks(shared: dict, height: str, width: str) -> int:
    return -(-shared[height] * shared[width] // shared["BLOCK"])


def _check(s, v, rpe, ws, stride, padding) -> None:
    """Refuse what would read outside of the tensors, or has no meaning."""
    here = "aggregate"
    if s.shape[:3] != v.shape[:3] or s.shape[4] != v.shape[3]:
        raise ValueError(f"{here}: s is B H W L h and v B H W h d, got {s.shape=} {v.shape=}")
    k = rpe.shape[0]
    if rpe.shape != (k, k, *s.shape[3:]):
        raise ValueError(f"{here}: rpe is k k L h, got {rpe.shape=} {s.shape=}")
    if ws is not None and ws.shape != rpe.shape:
        raise ValueError(f"{here}: ws has the shape of rpe, got {ws.shape=} {rpe.shape=}")
    if stride < 1 or not 0 <= padding < k:
        raise ValueError(f"{here}: 1 <= stride, 0 <= padding < k, got {stride=} {padding=} {k=}")
    if min(_count(size, k, stride, padding) for size in s.shape[1:3]) < 1:
        raise ValueError(f"{here}: no window fits, got {s.shape=} {k=} {padding=}; try a smaller k")


@register_flop_formula(torch.ops.saccade.triton_qna)
def _flops(s, v, rpe, *_, out_shape, **__) -> int:
    """One multiply-add per offset: of each value, and of each query's coefficient."""
    B, Ho, Wo, L, h = out_shape[1]
    return 2 * B * Ho * Wo * rpe[0] ** 2 * h * (v[4] + L)


@register_flop_formula(torch.ops.saccade.triton_qna_backward)
def _flops_backward(g, s, v, rpe, ws, m, *_, **__) -> int:
    B, Ho, Wo, L, h = m
    return 4 * B * Ho * Wo * rpe[0] ** 2 * h * (v[4] + L)
