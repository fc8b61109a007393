"""Self-attention inside blocks of s x s pixels (SASA, appendix A.1): the stem's operator.

    y_ij = sum over ab in the block of ij of  softmax_ab(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

As in local attention, r = concat(row, col), now with 2s-1 offsets from -(s-1) to s-1. Maps come cut
into blocks: B x (blocks down) x (blocks along) x (pixels of a block, in reading order) x channels.

`attend` goes from the image to y, projections included, and `maximum_of_blocks` on to the norm and
the maximum of each block: each one operator where the C++ kernels take it. `folded`, for graphs,
multiplies all numbers of a block (all channels of all its pixels) with one matrix at a time.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.sasa_block import MAXIMUM_NATIVE, NATIVE
from saccade.ops.operator import Operator
from saccade.ops.precision import no_autocast, product_dtype, wide

OUT = -1e30  # added to the logits of hidden pixels; finite, because it is multiplied
FEW = 64  # numbers of a block up to which a product of all with all is cheap


def attend(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, heads: int, mask: bool, backend: str = "auto",
) -> Float[Tensor, "B D H W"]:  # fmt: skip
    """y at every pixel of the image; values have a matrix for each of the n places of a block.

    With `mask`, pixels outside the image take no part; else they count with k = v = 0.
    """
    return ATTEND_BLOCKS(x, wq, wk, wv, row, col, heads, mask, backend=backend)


def maximum_of_blocks(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, scale: Float[Tensor, "D"], shift: Float[Tensor, "D"],
    heads: int, mask: bool, backend: str = "auto",
) -> Float[Tensor, "B D h w"]:  # fmt: skip
    """The maximum of y scale + shift over each block."""
    return MAXIMUM_OF_BLOCKS(x, wq, wk, wv, row, col, scale, shift, heads, mask, backend=backend)


fx.wrap("attend")  # one node each to torch.fx
fx.wrap("maximum_of_blocks")


def composed(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, heads: int, mask: bool,
) -> Float[Tensor, "B D H W"]:  # fmt: skip
    """The same, equation by equation."""
    side = math.isqrt(len(wv))
    blocks = cut(x, side)
    q, k = F.linear(blocks, wq), F.linear(blocks, wk)
    v = torch.einsum("byxnc,ndc->byxnd", blocks, wv)
    hidden = outside(x, side) if mask else None
    return join(block_attention(q, k, v, row, col, heads, hidden), *x.shape[2:])


def _folded(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, heads: int, mask: bool,
) -> Float[Tensor, "B y x h n d"]:  # fmt: skip
    """y of every block and head.

        q_i . k_j = x_i (Wq^T Wk) x_j        q_i . r_ij = (Wq^T r_ij) . x_i

    are linear in the numbers of a block, but for the one product with x_j.
    """
    wq, wk = (w.unflatten(0, (heads, -1)) for w in (wq, wk))  # h d C
    wv = wv.unflatten(1, (heads, -1))  # n h d C
    blocks = cut(x, math.isqrt(len(wv)))  # B y x n C
    numbers, one = blocks.flatten(3), torch.eye(len(wv), dtype=x.dtype, device=x.device)
    to_keys = torch.einsum("hdc,hde,in->ichne", wq, wk, one).flatten(0, 1).flatten(1)
    to_values = torch.einsum("nhdc,jn->jchnd", wv, one).flatten(0, 1).flatten(1)
    s = (numbers @ to_keys).unflatten(3, (-1, x.shape[1])) @ blocks.mT  # B y x (h n) n
    to_logits, inputs = None, numbers
    if row is not None and col is not None:
        r = _between(row, col).to(x.dtype)
        to_logits = torch.einsum("hdc,njd,in->ichnj", wq, r, one).flatten(0, 1).flatten(1)
    if mask:
        hidden = outside(x, math.isqrt(len(wv))).to(x.dtype).expand(x.shape[0], -1, -1, -1)
        to_hidden = (OUT * one)[:, None, None].expand(-1, heads, len(wv), -1).flatten(1)
        inputs = hidden if to_logits is None else torch.cat((numbers, hidden), 3)
        to_logits = to_hidden if to_logits is None else torch.cat((to_logits, to_hidden))
    if to_logits is not None:
        s = s + (inputs @ to_logits).unflatten(3, (-1, len(wv)))
    v = (numbers @ to_values).unflatten(3, (heads, len(wv), -1))
    return s.softmax(-1).unflatten(3, (heads, -1)) @ v


def folded(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, heads: int, mask: bool,
) -> Float[Tensor, "B D H W"]:  # fmt: skip
    """`attend` by products with one matrix each."""
    dtype = product_dtype(x)
    with no_autocast(x.device):
        y = _folded(*_widened(x, wq, wk, wv, row, col), heads, mask)
    return join(y.transpose(3, 4).flatten(4).to(dtype), *x.shape[2:])


def _widened(x: Tensor, *letters: Tensor | None) -> Any:
    """In the dtype of sums."""
    return [t if t is None else t.to(wide(x.dtype)) for t in (x, *letters)]


def maximum(y: Float[Tensor, "B D H W"], side: int) -> Float[Tensor, "B D h w"]:
    """The maximum over each block; of the pixels that exist, at the end of the map."""
    if torch.compiler.is_exporting():  # ceil_mode would need to know whether the blocks fit
        return F.max_pool2d(F.pad(y, (0, side - 1, 0, side - 1), mode="replicate"), side)
    return F.max_pool2d(y, side, ceil_mode=True)


def outside(x: Float[Tensor, "B C H W"], side: int) -> Bool[Tensor, "y x n"]:
    """Which pixels of the blocks the image does not have."""
    return cut(x.new_ones(1, 1, *x.shape[2:]), side)[0, ..., 0] == 0


def block_attention(
    q: Float[Tensor, "B y x n C"], k: Float[Tensor, "B y x n C"], v: Float[Tensor, "B y x n C"],
    row: Float[Tensor, "t half"] | None, col: Float[Tensor, "t half"] | None, heads: int,
    hidden: Bool[Tensor, "y x n"] | None = None,
) -> Float[Tensor, "B y x n C"]:  # fmt: skip
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
    if torch.compiler.is_exporting():  # a slice would fix in the graph whether the blocks fit
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


# -- the operators --------------------------------------------------------------------------------


def _composed_maximum(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, scale: Float[Tensor, "D"], shift: Float[Tensor, "D"],
    heads: int, mask: bool,
) -> Float[Tensor, "B D h w"]:  # fmt: skip
    y = attend(x, wq, wk, wv, row, col, heads, mask)
    return maximum(y * scale[:, None, None] + shift[:, None, None], math.isqrt(len(wv)))


def _folded_maximum(
    x: Float[Tensor, "B C H W"], wq: Float[Tensor, "D C"], wk: Float[Tensor, "D C"],
    wv: Float[Tensor, "n D C"], row: Float[Tensor, "t half"] | None,
    col: Float[Tensor, "t half"] | None, scale: Float[Tensor, "D"], shift: Float[Tensor, "D"],
    heads: int, mask: bool,
) -> Float[Tensor, "B D h w"]:  # fmt: skip
    """Scaling values scales their sums, and weights sum to one, so the shift is added last."""
    with no_autocast(x.device):
        x, wq, wk, wv, row, col = _widened(x, wq, wk, wv, row, col)
        y = _folded(x, wq, wk, wv * scale[:, None], row, col, heads, mask)
        beyond = outside(x, math.isqrt(len(wv))).to(y.dtype)[:, :, None, :, None]
        y = (y + beyond * OUT).amax(4).flatten(3) + shift  # B y x D
    return y.permute(0, 3, 1, 2)


def _cheapest(x: Any, wq: Any, wk: Any, wv: Any, *_: Any) -> str:
    """`folded` in graphs, if a block has few numbers; else `composed`."""
    return (
        "folded" if torch.compiler.is_exporting() and len(wv) * wq.shape[1] <= FEW else "composed"
    )


def _check(x, wq, wk, wv, row, col, *rest) -> None:
    side, heads, D = math.isqrt(len(wv)), rest[-2], len(wq)
    fit = side * side == len(wv) and heads > 0 and D % heads == 0 and (row is None) == (col is None)
    table = 2 * side - 1, D // max(heads, 1) // 2
    if not fit or (row is not None and row.shape != table):
        raise ValueError(
            f"attend_blocks: wv has s^2 matrices, heads divide D, row and col are both there and "
            f"2s-1 d/2, got {wv.shape=} {D=} {heads=} row {None if row is None else row.shape}"
        )


def _output(x, wq, *_) -> Tensor:
    B, _, H, W = x.shape
    return x.new_empty(B, H, W, len(wq)).permute(0, 3, 1, 2)


def _maximum_output(x, wq, wk, wv, *_) -> Tensor:
    (B, _, H, W), side = x.shape, math.isqrt(len(wv))
    down, along = ((n + side - 1) // side for n in (H, W))
    return x.new_empty(B, down, along, len(wq)).permute(0, 3, 1, 2)


def _flops(x: Any, wq: Any, wk: Any, wv: Any, row: Any, *_: Any) -> int:
    """Projections, q . k, q . r and the sums; blocks that reach over the end count whole."""
    (B, C, H, W), n = x, wv[0]
    side = math.isqrt(n)
    pixels = B * n * (-(-H // side)) * (-(-W // side))
    return 2 * pixels * wq[0] * (3 * C + n * (2 if row is None else 3))


ATTEND_BLOCKS = Operator(
    "attend_blocks",
    plain={"composed": composed, "folded": folded},
    cheapest=_cheapest,
    kernels={"native": NATIVE},
    check=_check,
    output=_output,
    flops=_flops,
)
MAXIMUM_OF_BLOCKS = Operator(
    "maximum_of_blocks",
    plain={"composed": _composed_maximum, "folded": _folded_maximum},
    cheapest=_cheapest,
    kernels={"native": MAXIMUM_NATIVE},
    check=_check,
    output=_maximum_output,
    flops=_flops,
)
