"""SASA's stem on CPU as one operator over the fused kernel: projections and attention in blocks.

    q = Wq x,  k = Wk x,  v = Wv(place) x
    y_ij = sum over ab in the block of ij of  softmax_ab(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

A block has 4 x 4 pixels. Queries, keys and values are many times the image they are made of, and
exist for one head of one block at a time, forward and backward: nothing is kept but the image.
Without a gradient to come, the norm and the maximum over each block can be had at once, and y does
not exist either.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import Block, Map, alike, like, pointer, run
from saccade.ops.second import second

SIDE, PIXELS = 4, 16  # of a block
LANES = 16  # floats in the widest vector: a head's channels come in multiples of it
DEEPEST = 64  # channels of the image


def attend_blocks(
    x: Float[Tensor, "B C H W"],
    wq: Float[Tensor, "D C"],
    wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "16 D C"],
    row: Float[Tensor, "7 half"] | None,
    col: Float[Tensor, "7 half"] | None,
    heads: int,
    mask: bool,
) -> Float[Tensor, "B D H W"]:
    """y at every pixel, in channels_last memory; `mask` leaves out what lies outside the image."""
    return torch.ops.saccade.attend_blocks(x, wq, wk, wv, row, col, heads, mask)


def maximum_of_blocks(
    x: Float[Tensor, "B C H W"],
    wq: Float[Tensor, "D C"],
    wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "16 D C"],
    row: Float[Tensor, "7 half"] | None,
    col: Float[Tensor, "7 half"] | None,
    scale: Float[Tensor, "D"],
    shift: Float[Tensor, "D"],
    heads: int,
    mask: bool,
) -> Float[Tensor, "B D h w"]:
    """The maximum of y scale + shift over each block. Without gradients."""
    return torch.ops.saccade.maximum_of_blocks(x, wq, wk, wv, row, col, scale, shift, heads, mask)


def supports(x: Tensor, wq: Tensor, heads: int, side: int) -> bool:
    """Whether the kernel takes such a call (where it can be called at all)."""
    D, C = wq.shape
    return (
        side == SIDE
        and D % (heads * LANES) == 0
        and C <= DEEPEST
        and x.dtype == wq.dtype == torch.float32
        and x.device == wq.device
        and x.device.type == "cpu"
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


@torch.library.custom_op("saccade::attend_blocks", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    heads: int,
    mask: bool,
) -> Tensor:
    y = _room(x, wq, wk, wv, row, col, heads, mask)
    call, _kept = _call(x, wq, wk, wv, row, col, heads, mask)
    call.y = y.data_ptr()
    run("saccade_block_forward", call)
    return y


@_forward.register_fake
def _room(x, wq, wk, wv, row, col, heads, mask):
    _check(x, wq, wk, wv, row, col, heads)
    B, _, H, W = x.shape
    return x.new_empty(B, H, W, len(wq)).permute(0, 3, 1, 2)


@torch.library.custom_op("saccade::maximum_of_blocks", mutates_args=(), device_types="cpu")
def _maximum(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    heads: int,
    mask: bool,
) -> Tensor:
    y = _small_room(x, wq, wk, wv, row, col, scale, shift, heads, mask)
    call, _kept = _call(x, wq, wk, wv, row, col, heads, mask)
    scale, shift = scale.contiguous(), shift.contiguous()
    call.scale, call.shift, call.y = scale.data_ptr(), shift.data_ptr(), y.data_ptr()
    run("saccade_block_forward", call)
    return y


@_maximum.register_fake
def _small_room(x, wq, wk, wv, row, col, scale, shift, heads, mask):
    _check(x, wq, wk, wv, row, col, heads, scale, shift)
    B, _, H, W = x.shape
    h, w = ((n + SIDE - 1) // SIDE for n in (H, W))
    return x.new_empty(B, h, w, len(wq)).permute(0, 3, 1, 2)


@torch.library.custom_op("saccade::attend_blocks_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    row: Tensor | None,
    col: Tensor | None,
    heads: int,
    mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    gradients = like(x, wq, wk, wv, row, col)
    call, _kept = _call(x, wq, wk, wv, row, col, heads, mask)
    grad = grad.permute(0, 2, 3, 1).contiguous()
    call.g = grad.data_ptr()
    given = (t if t.numel() else None for t in gradients)
    call.dx, call.dwq, call.dwk, call.dwv, call.drow, call.dcol = map(pointer, given)
    run("saccade_block_backward", call)
    return gradients


@_backward.register_fake
def _(grad, x, wq, wk, wv, row, col, heads, mask):
    return like(x, wq, wk, wv, row, col)


def _check(x, wq, wk, wv, row, col, heads, *affine) -> None:
    D, C = wq.shape
    fit = x.dim() == 4 and x.shape[1] == C and wk.shape == wq.shape
    fit = fit and wv.shape == (PIXELS, D, C) and D % (heads * LANES) == 0 and C <= DEEPEST
    table = (2 * SIDE - 1, D // heads // 2)
    fit = fit and all(t is None or t.shape == table for t in (row, col))
    fit = fit and all(t.shape == (D,) for t in affine)
    if not fit or (row is None) != (col is None) or not alike(x, wq, wk, wv, row, col, *affine):
        raise ValueError(
            f"attend_blocks: x is B C H W, wq and wk D C, wv {PIXELS} D C, row and col "
            f"{2 * SIDE - 1} d/2, in float32 on one device, d a multiple of {LANES} and C at most "
            f"{DEEPEST}, got {x.shape=} {wq.shape=} {wk.shape=} {wv.shape=} {heads=} {x.dtype=}"
        )


def _call(x, wq, wk, wv, row, col, heads, mask) -> tuple[Block, list[Tensor | None]]:
    """The structure for C++, and the tensors that must outlive the call."""
    B, C, H, W = x.shape
    kept = [None if t is None else t.contiguous() for t in (wq, wk, wv, row, col)]
    sizes = B, H, W, C, len(wq), heads, mask
    return Block(torch.get_num_threads(), *sizes, Map.of(x), *map(pointer, kept)), [x, *kept]


def _keep(ctx, inputs, output):
    *tensors, ctx.heads, ctx.mask = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad):
    tensors = ctx.saved_tensors
    gradients = torch.ops.saccade.attend_blocks_backward(grad, *tensors, ctx.heads, ctx.mask)
    pairs = zip(gradients, tensors, strict=True)
    return *(None if t is None else d for d, t in pairs), None, None


def _differentiate_again(ctx, *weights):
    from saccade.ops.sasa_block import plain

    def y(*tensors):
        return plain(*tensors, ctx.heads, ctx.mask)

    grad, *tensors = ctx.saved_tensors
    return *second(y, grad, tensors, weights), None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep)


# -- FLOPs: as the plain form counts them, blocks that reach over the end included -----------------


@register_flop_formula(torch.ops.saccade.attend_blocks)
def _flops(x, wq, wk, wv, row, *_, **__) -> int:
    B, C, H, W = x
    pixels = B * PIXELS * (-(-H // SIDE)) * (-(-W // SIDE))
    return 2 * pixels * wq[0] * (3 * C + PIXELS * (2 if row is None else 3))


@register_flop_formula(torch.ops.saccade.maximum_of_blocks)
def _flops_maximum(*shapes, **kwargs) -> int:
    return _flops(*shapes)


@register_flop_formula(torch.ops.saccade.attend_blocks_backward)
def _flops_backward(grad, *shapes, **kwargs) -> int:
    return 2 * _flops(*shapes)
