"""Self-attention inside blocks of s x s pixels (SASA, appendix A.1): the stem's operator.

    y_ij = sum over ab in the block of ij of  softmax_ab(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

As in local attention, r = concat(row, col), now with 2s-1 offsets from -(s-1) to s-1. Maps come cut
into blocks: B x (blocks down) x (blocks along) x (pixels of a block, in reading order) x channels.

`attend` goes from the image to y, projections included: by the kernels of `saccade.ops.native`
where they take such a call, else by `plain`.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.native.sasa_block import attend_blocks, maximum_of_blocks, supports
from saccade.ops.precision import no_autocast, wide
from saccade.ops.second import transformed

__all__ = [
    "attend", "block_attention", "cut", "fuses", "join", "maximum_of_blocks", "outside", "plain",
]  # fmt: skip


def fuses(x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], heads: int, side: int) -> bool:
    """Whether the kernel takes such a call."""
    if torch.compiler.is_exporting() or transformed() or not supports(x, wq, heads, side):
        return False
    return native.available()


def attend(
    x: Float[Tensor, "B C H W"],
    wq: Float[Tensor, "D C"],
    wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"],
    row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None,
    heads: int,
    mask: bool,
) -> Float[Tensor, "B D H W"]:
    """y at every pixel of the image; values have a matrix for each of the n places of a block.

    `mask` leaves out what lies outside the image, which else counts with k = v = 0.
    """
    form = attend_blocks if fuses(x, wq, heads, math.isqrt(len(wv))) else plain
    return form(x, wq, wk, wv, row, col, heads, mask)


def plain(
    x: Float[Tensor, "B C H W"],
    wq: Float[Tensor, "D C"],
    wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"],
    row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None,
    heads: int,
    mask: bool,
) -> Float[Tensor, "B D H W"]:
    """The same, equation by equation."""
    side = math.isqrt(len(wv))
    blocks = cut(x, side)
    q, k = F.linear(blocks, wq), F.linear(blocks, wk)
    v = torch.einsum("byxnc,ndc->byxnd", blocks, wv)
    hidden = outside(x, side) if mask else None
    return join(block_attention(q, k, v, row, col, heads, hidden), *x.shape[2:])


def outside(x: Float[Tensor, "B C H W"], side: int) -> Bool[Tensor, "y x n"]:
    """Which pixels of the blocks the image does not have."""
    return cut(x.new_ones(1, 1, *x.shape[2:]), side)[0, ..., 0] == 0


def block_attention(
    q: Float[Tensor, "B y x n C"],
    k: Float[Tensor, "B y x n C"],
    v: Float[Tensor, "B y x n C"],
    row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None,
    heads: int,
    hidden: Bool[Tensor, "y x n"] | None = None,
) -> Float[Tensor, "B y x n C"]:
    """Attend within blocks, but not to `hidden` pixels; without tables, no position term."""
    with no_autocast(q.device):
        qs, ks, vs = (
            x.to(wide(x.dtype)).unflatten(4, (heads, -1)).transpose(3, 4) for x in (q, k, v)
        )  # B y x h n d
        s = qs @ ks.mT  # B y x h n n
        if row is not None and col is not None:
            r = _between(row, col).to(s.dtype)
            s = s + torch.einsum("byxhid,ijd->byxhij", qs, r)
        if hidden is not None:
            s = s.masked_fill(hidden[:, :, None, None], float("-inf"))
        y = s.softmax(-1) @ vs
    return y.transpose(3, 4).flatten(4).to(q.dtype)


def cut(x: Float[Tensor, "B C H W"], side: int) -> Float[Tensor, "B y x n C"]:
    """A map in blocks; those that reach over its end are filled up with zeros."""
    H, W = x.shape[2:]
    down, along = (H + side - 1) // side, (W + side - 1) // side  # ONNX rounds negatives up
    x = F.pad(x, (0, along * side - W, 0, down * side - H)).permute(0, 2, 3, 1)
    x = x.unflatten(2, (along, side)).unflatten(1, (down, side))  # B y i x j C
    return x.transpose(2, 3).flatten(3, 4)


def join(x: Float[Tensor, "B y x n C"], H: int, W: int) -> Float[Tensor, "B C H W"]:
    """Undo `cut`."""
    side = math.isqrt(x.shape[3])
    x = x.unflatten(3, (side, side)).transpose(2, 3)
    x = x.flatten(3, 4).flatten(1, 2)  # B sy sx C
    if torch.compiler.is_exporting():  # a slice would ask whether blocks fit, once and for all
        x = x.index_select(1, torch.arange(H, device=x.device))
        x = x.index_select(2, torch.arange(W, device=x.device))
    else:
        x = x[:, :H, :W]
    return x.permute(0, 3, 1, 2)


def _between(row: Float[Tensor, "t half"], col: Float[Tensor, "t half"]) -> Float[Tensor, "n n d"]:
    """r between pixel i (first axis) and pixel j (second axis) of a block."""
    side = (len(row) + 1) // 2
    at = torch.arange(side, device=row.device)
    offset = at - at[:, None] + side - 1  # from one line to another, as an index
    rows = row[offset][:, None, :, None].expand(-1, side, -1, side, -1)
    cols = col[offset][None, :, None, :].expand(side, -1, side, -1, -1)
    return torch.cat((rows, cols), 4).flatten(2, 3).flatten(0, 1)
