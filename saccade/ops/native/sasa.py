"""Local attention (SASA) on CPU as a torch operator over the fused kernel.

    s(ab) = q . k(ab) + q . r(a-i, b-j)     y = sum over the window of softmax(s) v

`local_attention` has the signature of the plain form in `saccade.ops.sasa`. Nothing is kept for the
backward but the inputs: it recomputes the weights, which is cheaper than to write and read them.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import TYPES, Map, Sasa, pointer, run, table
from saccade.ops.second import second

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
    """Every pixel's weighted mean of the values in its window, by the fused kernel."""
    return torch.ops.saccade.local_attention(q, k, v, row, col, heads, window, border)


def supports(q: Tensor, heads: int, window: int) -> bool:
    """Whether the kernel takes such a call (where it can be called at all)."""
    return (
        q.dtype in TYPES
        and q.device.type == "cpu"
        and window % 2 == 1
        and 3 <= window <= 15
        and q.shape[1] // heads <= WIDEST
        and q.numel() > 0
    )


@torch.library.custom_op("saccade::local_attention", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    heads: int,
    window: int,
    border: str,
) -> Tensor:
    check(q, k, v, row, col, heads, window, border)
    out = torch.empty_like(q)
    call, _kept = _call(q, k, v, row, col, heads, window, border)
    call.out = Map.of(out)
    run("saccade_sasa_forward", call)
    return out


@_forward.register_fake
def _(q, k, v, row, col, heads, window, border):
    check(q, k, v, row, col, heads, window, border)
    return torch.empty_like(q)


@torch.library.custom_op("saccade::local_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    heads: int,
    window: int,
    border: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, drow, dcol = gradients = _like(q, k, v, row, col)
    call, (row, col) = _call(q, k, v, row, col, heads, window, border)
    call.gout = Map.of(grad)
    call.dq, call.dv = Map.of(dq), Map.of(dv)
    call.dk = Map.of(None if k is None else dk)
    wide = [None if t is None else torch.empty_like(t) for t in (row, col)]
    call.drow, call.dcol = map(pointer, wide)
    run("saccade_sasa_backward", call)
    for small, sums in zip((drow, dcol), wide, strict=True):
        if sums is not None:
            small.copy_(sums)
    return gradients


@_backward.register_fake
def _(grad, q, k, v, row, col, heads, window, border):
    return _like(q, k, v, row, col)


def _like(q: Tensor, *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for the gradients; empty ones for absent inputs (an operator returns no None)."""
    k, v, row, col = (q.new_empty(0) if t is None else torch.empty_like(t) for t in inputs)
    return torch.empty_like(q), k, v, row, col


def _keep(ctx, inputs, output):
    *tensors, ctx.heads, ctx.window, ctx.border = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad):
    tensors = ctx.saved_tensors
    gradients = torch.ops.saccade.local_attention_backward(
        grad, *tensors, ctx.heads, ctx.window, ctx.border
    )
    kept = (None if t is None else g for t, g in zip(tensors, gradients, strict=True))
    return *kept, None, None, None


def _differentiate_again(ctx, *weights):
    from saccade.ops.sasa import shifted

    def plain(*tensors):
        return shifted(*tensors, ctx.heads, ctx.window, ctx.border)

    grad, *tensors = ctx.saved_tensors
    return *second(plain, grad, tensors, weights), None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep)
_forward.register_autocast("cpu", torch.bfloat16)


def _call(q, k, v, row, col, heads, window, border):
    """The structure for C++, and the tensors that must outlive the call."""
    B, C, H, W = q.shape
    row, col = table(row, q.dtype), table(col, q.dtype)
    call = Sasa(
        TYPES[q.dtype], torch.get_num_threads(), B, heads, C // heads, H, W, window,
        border == "mask", 1 if row is None else row.shape[0],
        Map.of(q), Map.of(k), Map.of(v), pointer(row), pointer(col),
    )  # fmt: skip
    return call, (row, col)


def check(q, k, v, row, col, heads, window, border) -> None:
    """Refuse, with the cure, what the equation has no meaning for."""
    here = "local_attention"
    C = q.shape[1]
    if heads < 1 or C % heads:
        raise ValueError(f"{here}: heads must divide the channels, got {C=} {heads=}")
    if window % 2 == 0 or not 3 <= window <= 15:
        raise ValueError(f"{here}: window must be odd, from 3 to 15, got {window=}")
    if border not in BORDERS:
        raise ValueError(f"{here}: border must be one of {BORDERS}, got {border=}")
    if any(t is not None and (t.shape != q.shape or t.dtype != q.dtype) for t in (k, v)):
        raise ValueError(f"{here}: q, k and v must agree in shape and dtype, got {q.shape=}")
    if q.dtype not in TYPES:
        raise ValueError(f"{here}: dtype must be one of {list(TYPES)}, got {q.dtype=}")
    if (row is None) != (col is None):
        raise ValueError(f"{here}: row and col come together or not at all")
    if row is None:
        if k is None:
            raise ValueError(f"{here}: nothing to compare; give k, or row and col")
        return
    d = C // heads
    if d % 2:
        raise ValueError(f"{here}: positions need an even head width, got {C=} {heads=}")
    for t in (row, col):
        if t.shape[0] not in (1, heads) or t.shape[1:] != (window, d // 2):
            raise ValueError(
                f"{here}: row and col must be (1 or {heads}, {window}, {d // 2}), got {t.shape}"
            )


# -- FLOPs: the products of the equation, whatever the kernel saves of them ---------------------


def _products(q_shape, k_shape, row_shape, window: int) -> int:
    B, C, H, W = q_shape
    kinds = 1 + (k_shape is not None) + (row_shape is not None)  # p v, q k, q r
    return 2 * kinds * B * C * H * W * window**2


@register_flop_formula(torch.ops.saccade.local_attention)
def _flops(q, k, v, row, col, heads, window, border, *args, out_shape=None, **kwargs) -> int:
    return _products(q, k, row, window)


@register_flop_formula(torch.ops.saccade.local_attention_backward)
def _flops_backward(grad, q, k, v, row, col, heads, window, border, *args, **kwargs) -> int:
    return 2 * _products(q, k, row, window)
