"""Stand-alone self-attention in blocks, for graphs that other runtimes execute: large operators.

The map is cut into blocks of s x s queries. A block needs the t x t keys around it, t = s + k - 1:

    logits = Q K^T + [down, along] [E_rows, E_columns]^T        s^2 x t^2 of each block and head

is two small products. `down` holds, for a query in row y of its block, the logits q . row in places
y to y+k-1 of the block's t key rows and OUT in all others: the position term, and the window as a
mask. `along` likewise for columns. E is one-hot: the row and the column of each key. So the second
product adds to every key its two terms.

Pixels are gathered by index, because the graph must be right for every size: torch.export assumes
that no axis has length one, so the number of blocks cannot be the length of an axis.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.precision import no_autocast, wide

OUT = -1e30  # the logit of what is not to be seen; finite, because it is multiplied
SIDE = 4  # s; with more, more of the keys are beyond a query's window


def blocked(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, heads: int,
    window: int, border: str = "zero",
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """The equation, block by block: (t/s)^2 times the memory of its input, for keys and values."""
    (H, W), dtype = q.shape[2:], wide(q.dtype)
    own, around = BlockGrid(H, W, heads, 1), BlockGrid(H, W, heads, window)
    with no_autocast(q.device):
        qs = own.pixels(q.to(dtype))
        s = _lines(qs, row, col, own, window, border) @ _lines_of_keys(around.side, qs)
        if k is not None:
            s = own.blocks(qs) @ around.blocks(around.pixels(k.to(dtype))).mT + s
        y = own.joined(s.softmax(2) @ around.blocks(around.pixels(v.to(dtype))))
    return y.to(q.dtype)


class BlockGrid(NamedTuple):
    """A map in blocks of SIDE x SIDE pixels, each with the pixels around it that windows reach."""

    H: int
    W: int
    heads: int
    window: int

    @property
    def side(self) -> int:
        """Side of a block with the pixels around it."""
        return SIDE + self.window - 1

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of blocks, vertically and horizontally."""
        return (self.H + SIDE - 1) // SIDE, (self.W + SIDE - 1) // SIDE

    def pixels(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "Bh n d"]:
        """Every head's pixels in reading order, with zeros wherever blocks reach beyond the map."""
        (down, along), p = self.tiles, self.window // 2
        x = F.pad(x, (p, along * SIDE - self.W + p, p, down * SIDE - self.H + p))
        x = x.unflatten(1, (self.heads, -1)).permute(0, 1, 3, 4, 2)
        return x.flatten(2, 3).flatten(0, 1)

    def blocks(self, x: Float[Tensor, "Bh n d"], turned: bool = False) -> Float[Tensor, "m N d"]:
        """The pixels of every block, row by row or, turned, column by column."""
        (down, along), line = self.tiles, torch.arange(self.side, device=x.device)
        width = along * SIDE + self.window - 1
        block = torch.arange(down * along + 1, device=x.device)  # one more, so never one alone
        first = block // along * SIDE * width + (block - block // along * along) * SIDE
        place = line[:, None] * width + line
        at = first[:, None] + (place.mT if turned else place).flatten()
        at = at.flatten().narrow(0, 0, down * along * self.side**2)
        return x.index_select(1, at).flatten(0, 1).unflatten(0, (-1, self.side**2))

    def off(self, window: int, rows: bool, like: Tensor) -> Float[Tensor, "n k"]:
        """OUT where an offset leads from a pixel off the map, along rows or columns."""
        down, along = self.tiles
        at = torch.arange(down * along * SIDE**2, device=like.device)
        i = at // (along * SIDE)
        place, size = (i, self.H) if rows else (at - i * (along * SIDE), self.W)
        to = place[:, None] + torch.arange(window, device=like.device)
        return ((to < window // 2) | (to >= size + window // 2)).to(like.dtype) * OUT

    def joined(self, x: Float[Tensor, "m N d"]) -> Float[Tensor, "B C H W"]:
        """The map that `blocks` took apart, without what was around it."""
        down, along = self.tiles
        at = torch.arange(self.H * self.W, device=x.device)
        i = at // self.W
        j = at - i * self.W
        above, left = i // SIDE, j // SIDE
        within = (i - above * SIDE) * SIDE + j - left * SIDE
        x = x.flatten(0, 1).unflatten(0, (-1, down * along * SIDE**2))
        x = x.index_select(1, (above * along + left) * SIDE**2 + within)  # B*h H*W d
        return x.mT.unflatten(0, (-1, self.heads)).flatten(1, 2).unflatten(2, (self.H, self.W))


def _lines(
    q: Float[Tensor, "Bh n d"], row: Float[Tensor, "r k half"] | None,
    col: Float[Tensor, "r k half"] | None, own: BlockGrid, window: int, border: str,
) -> Float[Tensor, "m N t"]:  # fmt: skip
    """`down` and `along` of every query, side by side."""
    reached = F.pad(torch.ones(SIDE, SIDE, window, device=q.device), (0, SIDE))
    out = torch.cat((_skew(reached).transpose(0, 1), _skew(reached)), 2).flatten(0, 1)  # s*s 2*t
    out = ((1 - out) * OUT).to(q.dtype)
    if row is None and border == "zero":
        return out[None]

    def logits(table: Tensor | None, rows: bool) -> Tensor:
        if table is None:
            x = torch.zeros_like(q[..., :1]).expand(-1, -1, window + SIDE)
        else:
            half = table.shape[2]
            fill = (0, SIDE, *((0, half) if rows else (half, 0)))  # zeros for the other half of q
            table = F.pad(table.to(q.dtype).mT, fill)
            x = (q.unflatten(0, (-1, own.heads)) @ table).flatten(0, 1)  # B*h n k+s
        if border == "mask":
            x = x + F.pad(own.off(window, rows, q), (0, SIDE))
        x = _skew(own.blocks(x, turned=rows).unflatten(1, (SIDE, SIDE)))
        return (x.transpose(1, 2) if rows else x).flatten(1, 2)

    return torch.cat((logits(row, True), logits(col, False)), 2) + out


def _skew(x: Float[Tensor, "*m s t1"]) -> Float[Tensor, "*m s t"]:
    """Each of s rows, of k entries and s zeros, shifted one place further than the one before."""
    s, t = x.shape[-2], x.shape[-1] - 1
    return x.flatten(-2)[..., :-s].unflatten(-1, (s, t))  # rows of t + 1, read as rows of t


def _lines_of_keys(t: int, like: Tensor) -> Float[Tensor, "t K"]:
    """In which row and in which column of its block a key is."""
    one = torch.eye(t, dtype=like.dtype, device=like.device)
    rows, columns = one[:, :, None].expand(-1, -1, t), one[:, None].expand(-1, t, -1)
    return torch.cat((rows, columns)).flatten(1)
