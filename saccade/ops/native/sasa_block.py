"""SASA's stem on CPU by the fused kernel: projections and attention in blocks.

    q = Wq x,  k = Wk x,  v = Wv(place) x
    y_ij = sum over ab in the block of ij of  softmax_ab(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

A block has 4 x 4 pixels. Queries, keys and values are many times larger than the image, so they are
held for one head of one block at a time, forward and backward; only the image is saved. Without
gradients, the kernel also applies the norm and the maximum over each block, and y is never stored.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import LIMITS, Block, Map, fresh, pointer, run
from saccade.ops.native.residual import FromWeights, Memory
from saccade.ops.operator import Kernel

SIDE = LIMITS["block_side"]
PIXELS = SIDE**2
LANES = LIMITS["block_width_step"]  # a head's channels come in multiples of it
DEEPEST = LIMITS["block_inputs"]  # channels of the image


def _takes(x, wq, wk, wv, row, col, *rest) -> bool:
    return len(wv) == PIXELS and takes_blocks(*wq.shape, rest[-2])


def takes_blocks(outputs: int, inputs: int, heads: int) -> bool:
    """Whether the kernel takes such projections."""
    return outputs % (heads * LANES) == 0 and inputs <= DEEPEST


def _forward(out, residuals, x, wq, wk, wv, row, col, heads, mask) -> None:
    call = _call(x, wq, wk, wv, row, col, heads, mask)
    call.y = out.data_ptr()
    run("saccade_block_forward", call)


def _maximum(out, residuals, x, wq, wk, wv, row, col, scale, shift, heads, mask) -> None:
    call = _call(x, wq, wk, wv, row, col, heads, mask)
    call.scale, call.shift, call.y = scale.data_ptr(), shift.data_ptr(), out.data_ptr()
    run("saccade_block_forward", call)


def _backward(grad, residuals, needs, x, wq, wk, wv, row, col, heads, mask):
    inputs = x, wq, wk, wv, row, col
    gradients = [None if t is None else t.new_empty(t.shape) for t in inputs]
    call = _call(*inputs, heads, mask)
    grad = grad.permute(0, 2, 3, 1).contiguous()
    call.g = grad.data_ptr()
    call.dx, call.dwq, call.dwk, call.dwv, call.drow, call.dcol = map(pointer, gradients)
    run("saccade_block_backward", call)
    return gradients


def _call(x, wq, wk, wv, row, col, heads, mask) -> Any:
    B, C, H, W = x.shape
    sizes = B, H, W, C, len(wq), heads, mask
    return Block(
        torch.get_num_threads(), *sizes, Map.of(x), *map(pointer, (wq, wk, wv, row, col))
    )  # fmt: skip


class BlocksMaximum:
    """Attention in each block, scaled and shifted, then its maximum over the block; for inference.

    weights    computes wq, wk, wv, scale and shift from `numbers`
    """

    def __init__(self, numbers: Iterable[Tensor], weights: Callable[[], tuple[Tensor, ...]],
                 row: Tensor | None, col: Tensor | None, *, outputs: int, heads: int,
                 mask: bool):  # fmt: skip
        tables = [t for t in (row, col) if t is not None]

        def laid_out(_: Any) -> tuple[Tensor, ...]:
            return tuple(t.detach().contiguous() for t in (*weights(), *tables))

        self.derived = FromWeights(numbers, laid_out, Memory())
        self.outputs, self.heads, self.mask = outputs, heads, mask

    def __call__(self, x: Tensor) -> Tensor:
        (B, H, W, _), (wq, wk, wv, scale, shift, *tables) = x.shape, self.derived(None)
        row, col = tables or (None, None)
        call = _call(x.permute(0, 3, 1, 2), wq, wk, wv, row, col, self.heads, self.mask)
        out = fresh(x, B, -(-H // SIDE), -(-W // SIDE), self.outputs)
        call.scale, call.shift, call.y = scale.data_ptr(), shift.data_ptr(), out.data_ptr()
        run("saccade_block_forward", call)
        return out


_ABOUT = f"blocks of 4 x 4, head widths in multiples of {LANES}, images of up to {DEEPEST} channels"
NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=_ABOUT,
    ready=native.available,
    strided=("x", "grad"),
)
MAXIMUM_NATIVE = Kernel(
    forward=_maximum,
    backward=None,
    takes=_takes,
    about=f"{_ABOUT}; without gradients",
    ready=native.available,
    strided=("x",),
)
