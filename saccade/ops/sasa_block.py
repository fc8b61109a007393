"""Self-attention inside blocks of s x s pixels (SASA, appendix A.1): the stem's operator.

    y_ij = sum over ab in the block of ij of  softmax_ab(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

As in local attention, r = concat(row, col), now with 2s-1 offsets from -(s-1) to s-1. Blocks that
reach over the end of the map are filled up: with pixels of key and value zero (border="zero") or
with pixels that are not seen (border="mask").
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.precision import no_autocast, wide


def block_attention(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"],
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None,
    heads: int,
    side: int,
    border: str = "zero",
) -> Float[Tensor, "B C H W"]:
    """Attend within blocks; without `row` and `col` there is no position term."""
    H, W = q.shape[2:]
    with no_autocast(q.device):
        qs, ks, vs = (_blocks(x.to(wide(x.dtype)), heads, side) for x in (q, k, v))
        s = qs @ ks.mT  # B ny nx h i j
        if row is not None and col is not None:
            r = _between(row, col, side).to(s.dtype)
            s = s + torch.einsum("byxhid,ijd->byxhij", qs, r)
        if border == "mask":
            inside = _blocks(q.new_ones(1, 1, H, W), 1, side)[..., 0]  # 1 ny nx 1 j
            s = s.masked_fill(inside[..., None, :] == 0, float("-inf"))
        y = s.softmax(-1) @ vs  # B ny nx h i d
    y = y.unflatten(4, (side, side)).permute(0, 3, 6, 1, 4, 2, 5)  # B h d ny i nx j
    return y.flatten(5, 6).flatten(3, 4).flatten(1, 2)[:, :, :H, :W].to(q.dtype)


def _blocks(x: Float[Tensor, "B C H W"], heads: int, side: int) -> Float[Tensor, "B ny nx h s d"]:
    """Each block's pixels in reading order, zeros over the end."""
    H, W = x.shape[2:]
    x = F.pad(x, (0, -W % side, 0, -H % side)).unflatten(1, (heads, x.shape[1] // heads))
    x = x.unflatten(4, (-1, side)).unflatten(3, (-1, side))  # B h d ny i nx j
    return x.permute(0, 3, 5, 1, 4, 6, 2).flatten(4, 5)


def _between(
    row: Float[Tensor, "t half"], col: Float[Tensor, "t half"], side: int
) -> Float[Tensor, "s s d"]:
    """r between pixel i (first axis) and pixel j (second axis) of one block."""
    at = torch.arange(side, device=row.device)
    offset = at - at[:, None] + side - 1  # from one line to another, as an index
    rows = row[offset][:, None, :, None].expand(-1, side, -1, side, -1)
    cols = col[offset][None, :, None, :].expand(side, -1, side, -1, -1)
    return torch.cat((rows, cols), 4).flatten(2, 3).flatten(0, 1)
