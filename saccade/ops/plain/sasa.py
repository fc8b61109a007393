"""Stand-alone self-attention in tiles: matrix products instead of windows, and little memory.

The map is cut into tiles of s x s queries. A tile needs the (s+k-1) x (s+k-1) keys around it, so

    logits = Q K^T + skew(q . row) + skew(q . col)            s^2 x (s+k-1)^2 per tile and head

is one small dense product. Of these keys, a query attends to the k x k of its own window only:
query row y of a tile to key rows y to y+k-1. So `skew` writes its k row logits into s+k-1 places,
from place y on, and OUT into all others: they hold the position term, and the window as a mask.
Likewise for columns.

Tiles are computed in parts (some images, some heads, a band of rows) of a bounded number of floats,
forward and backward. The backward computes the attention weights of a part again, so that only q, k
and v are saved for it.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.operator import Kernel
from saccade.ops.precision import wide

OUT = -1e30  # the logit of keys outside the window; finite: a row of -inf alone would give NaN
SIDE = 4  # of a tile, on a map that is not one tile
WHOLE = 7  # up to so many rows (columns), a map is one tile high (wide)
LEAST, MOST = 2**19, 2**20  # floats of a part; with more, they do not fit into a CPU's caches


def _by_head(x: Float[Tensor, "B C H W"], heads: int) -> Float[Tensor, "B h H W d"]:
    return x.unflatten(1, (heads, x.shape[1] // heads)).permute(0, 1, 3, 4, 2)


# -- a band of tiles ------------------------------------------------------------------------------


class Band(NamedTuple):
    """Some rows of some maps, tiled."""

    B: int  # images
    h: int  # heads
    top: int  # its first row,
    end: int  # the row after its last,
    H: int  # and the whole map's size
    W: int
    window: int
    th: int  # a tile's height
    tw: int  # and width

    @property
    def grid(self) -> tuple[int, int]:
        """How many tiles, vertically and horizontally; the last ones may reach beyond the map."""
        return -((self.top - self.end) // self.th), -(-self.W // self.tw)

    @property
    def n(self) -> int:
        """How many tiles in all."""
        return self.B * self.h * self.grid[0] * self.grid[1]

    @property
    def halo(self) -> tuple[int, int, int]:
        """The rows that the band's windows reach (first, end), and how many are off the map."""
        low = max(self.top - self.window // 2, 0)
        return low, min(self.end + self.window // 2, self.H), low - self.top + self.window // 2

    def queries(self, x: Float[Tensor, "B h H W d"]) -> Float[Tensor, "n T d"]:
        """The band's own pixels, tile after tile; zeros beyond the map."""
        ny, nx = self.grid
        x = x[:, :, self.top : self.end].to(wide(x.dtype))
        over = (ny * self.th - (self.end - self.top), nx * self.tw - self.W)
        x = F.pad(x, (0, 0, 0, over[1], 0, over[0]))
        x = x.unflatten(3, (nx, self.tw)).unflatten(2, (ny, self.th)).transpose(3, 4)
        return x.reshape(self.n, self.th * self.tw, x.shape[-1])

    def keys(self, x: Float[Tensor, "B h H W d"]) -> Float[Tensor, "n K d"]:
        """The pixels around each tile, zeros outside the map."""
        (ny, nx), (low, high, above), p = self.grid, self.halo, self.window // 2
        x = x[:, :, low:high].to(wide(x.dtype))
        below = ny * self.th + 2 * p - above - (high - low)
        x = F.pad(x, (0, 0, p, nx * self.tw - self.W + p, above, below))
        x = x.unfold(2, self.th + 2 * p, self.th).unfold(3, self.tw + 2 * p, self.tw)
        x = x.permute(0, 1, 2, 3, 5, 6, 4)  # B h ny nx kh kw d
        return x.reshape(self.n, x.shape[4] * x.shape[5], x.shape[6])

    def join(self, tiles: Float[Tensor, "n T d"]) -> Float[Tensor, "B h R W d"]:
        """Undo `queries`."""
        ny, nx = self.grid
        x = tiles.reshape(self.B, self.h, ny, nx, self.th, self.tw, tiles.shape[-1])
        x = x.transpose(3, 4).flatten(4, 5).flatten(2, 3)
        return x[:, :, : self.end - self.top, : self.W]

    def by_head(self, tiles: Float[Tensor, "n T c"]) -> Float[Tensor, "B h t c"]:
        """The queries of each head together, to be multiplied with its table."""
        return tiles.reshape(self.B, self.h, -1, tiles.shape[2])

    def add(self, tiles: Float[Tensor, "n K d"], to: Float[Tensor, "B h H W d"]) -> None:
        """The transpose of `keys`: add each tile's numbers to the pixels that it read."""
        (ny, nx), (low, high, above), p = self.grid, self.halo, self.window // 2
        th, tw, kh, kw = self.th, self.tw, self.th + 2 * p, self.tw + 2 * p
        x = tiles.reshape(self.B, self.h, ny, nx, kh, kw, -1).transpose(3, 4)  # B h ny kh nx kw d
        reach = (-(-kh // th), -(-kw // tw))  # in tiles
        total = x.new_zeros(self.B, self.h, ny + reach[0], th, nx + reach[1], tw, x.shape[-1])
        for i in range(reach[0]):
            for j in range(reach[1]):
                piece = x[:, :, :, i * th : (i + 1) * th, :, j * tw : (j + 1) * tw]
                _, _, _, h, _, w, _ = piece.shape
                total[:, :, i : i + ny, :h, j : j + nx, :w] += piece
        total = total.flatten(4, 5).flatten(2, 3)  # begins p rows above the band, p columns left
        to[:, :, low:high] += total[:, :, above : above + high - low, p : p + self.W]


def _weights(
    q: Float[Tensor, "n T d"], k: Float[Tensor, "n K d"] | None,
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, border: str,
    band: Band,
) -> Float[Tensor, "n T K"]:  # fmt: skip
    """Softmax over the keys of each tile, zero outside a query's own window."""
    ny, nx = band.grid
    if row is None or col is None:
        down = q.new_zeros(1, 1, 1, band.th, band.tw, band.window)
        along = down
    else:
        rows, cols = band.by_head(q).chunk(2, 3)
        logits = (band.B * band.h, ny, nx, band.th, band.tw, band.window)
        down = (rows @ row.to(q.dtype).mT).reshape(logits)
        along = (cols @ col.to(q.dtype).mT).reshape(logits)
    down = _skew(down.transpose(3, 4)).transpose(3, 4)  # .. th tw kh
    along = _skew(along)  # .. th tw kw
    if border == "mask":
        outside = _outside(ny, band.th, band.top, band.H, band.window, q.device)
        down = down.masked_fill(outside[:, None, None, None], OUT)
        outside = _outside(nx, band.tw, 0, band.W, band.window, q.device)
        along = along.masked_fill(outside[:, None, None], OUT)
    s = down.contiguous()[..., None] + along[..., None, :]  # .. th tw kh kw
    s = s.expand(band.B * band.h, ny, nx, -1, -1, -1, -1)
    s = s.reshape(band.n, q.shape[1], s.shape[5] * s.shape[6]).contiguous()
    if k is not None:
        s.baddbmm_(q, k.mT)
    return s.softmax(-1)


def _skew(x: Float[Tensor, "*n s k"]) -> Float[Tensor, "*n s t"]:
    """Shift row y to the right by y places: s rows of k become rows of t = s+k-1, OUT elsewhere."""
    s, k = x.shape[-2:]
    x = F.pad(x, (0, s), value=OUT).flatten(-2)  # rows of t+1; read as rows of t,
    return x[..., :-s].unflatten(-1, (s, s + k - 1))  # each begins one place later


def _unskew(x: Float[Tensor, "*n s t"]) -> Float[Tensor, "*n s k"]:
    """The transpose of `_skew`: the k entries of each row."""
    s, t = x.shape[-2:]
    return F.pad(x.flatten(-2), (0, s)).unflatten(-1, (s, t + 1))[..., : t - s + 1]


def _outside(
    tiles: int, side: int, first: int, size: int, window: int, device: torch.device
) -> Bool[Tensor, "tiles t"]:
    """Which key rows (or columns) of each tile are off the map."""
    start = torch.arange(tiles, device=device) * side + first - window // 2
    at = start[:, None] + torch.arange(side + window - 1, device=device)
    return (at < 0) | (at >= size)


# -- part by part ---------------------------------------------------------------------------------


class Part(NamedTuple):
    """The images, heads and rows that are computed at a time."""

    images: slice
    heads: slice
    band: Band

    def of(self, x: Float[Tensor, "B h H W d"]) -> Float[Tensor, "b g H W d"]:
        return x[self.images, self.heads]

    def own(self, table: Float[Tensor, "r k half"] | None) -> Float[Tensor, "s k half"] | None:
        """Its heads' entries of a table, or the table that all heads share."""
        return table if table is None or len(table) == 1 else table[self.heads]


def _parts(maps: Float[Tensor, "B h H W d"], window: int) -> Iterator[Part]:
    """As many rows as the budget allows; if that is the whole map, some heads, then some images.

    The budget is the size of the map itself, within LEAST and MOST (on a CPU). It is exceeded where
    not even one row of tiles of one head fits.
    """
    B, h, H, W, d = maps.shape
    th, tw = (n if n <= WHOLE else SIDE for n in (H, W))
    ny, nx = -(-H // th), -(-W // tw)
    # floats of a tile in backward: weights, their gradients; keys, values and theirs
    tile = (th + window - 1) * (tw + window - 1) * (4 * th * tw + 6 * d)
    budget = max(maps.numel(), LEAST)
    if maps.device.type == "cpu":
        budget = min(budget, MOST)
    rows = max(budget // (tile * nx), 1)  # of tiles
    height = th * -(-ny // -(-ny // rows))  # bands of about one height
    heads, images = max(min(rows // ny, h), 1), max(min(rows // (ny * h), B), 1)
    for b in range(0, B, images):
        for n in range(0, h, heads):
            for top in range(0, H, height):
                size = min(images, B - b), min(heads, h - n)
                band = Band(*size, top, min(top + height, H), H, W, window, th, tw)
                yield Part(slice(b, b + images), slice(n, n + heads), band)


def _forward(
    out: Tensor, residuals: tuple[()], q: Tensor, k: Tensor | None, v: Tensor, row: Tensor | None,
    col: Tensor | None, heads: int, window: int, border: str,
) -> None:  # fmt: skip
    qs, vs, ys = (_by_head(x, heads) for x in (q, v, out))
    ks = None if k is None else _by_head(k, heads)
    for part in _parts(qs, window):
        band = part.band
        keys = None if ks is None else band.keys(part.of(ks))
        queries, tables = band.queries(part.of(qs)), (part.own(row), part.own(col))
        a = _weights(queries, keys, *tables, border, band)
        part.of(ys)[:, :, band.top : band.end] = band.join(a @ band.keys(part.of(vs)))


def _backward(
    grad: Tensor, residuals: tuple[()], needs: list[bool], q: Tensor, k: Tensor | None, v: Tensor,
    row: Tensor | None, col: Tensor | None, heads: int, window: int, border: str,
) -> list[Tensor | None]:  # fmt: skip
    gk, gv, grow, gcol = (
        None if x is None else torch.zeros_like(x, dtype=wide(x.dtype)) for x in (k, v, row, col)
    )
    gq = torch.empty_like(q)
    qs, vs, gys, gqs = (_by_head(x, heads) for x in (q, v, grad, gq))
    gvs = _by_head(cast(Tensor, gv), heads)
    ks, gks = (None if x is None else _by_head(x, heads) for x in (k, gk))
    for part in _parts(qs, window):
        band = part.band
        rows, cols = part.own(row), part.own(col)
        queries, gout = band.queries(part.of(qs)), band.queries(part.of(gys))
        keys = None if ks is None else band.keys(part.of(ks))
        a = _weights(queries, keys, rows, cols, border, band)
        band.add(a.mT @ gout, part.of(gvs))
        s = gout @ band.keys(part.of(vs)).mT  # gradient of the weights,
        s = torch._softmax_backward_data(s, a, -1, s.dtype)  # of the logits
        del a
        total = torch.zeros_like(queries)
        if keys is not None and gks is not None:
            total = s @ keys
            band.add(s.mT @ queries, part.of(gks))
        if rows is not None and cols is not None:
            gs = _position_backward(s, queries, rows, cols, band)
            for to, g in zip((total, part.own(grow), part.own(gcol)), gs, strict=True):
                cast(Tensor, to).add_(g)
        part.of(gqs)[:, :, band.top : band.end] = band.join(total)
    return [gq, gk, gv, grow, gcol]


def _position_backward(
    s: Float[Tensor, "n T K"], q: Float[Tensor, "n T d"], row: Float[Tensor, "r k half"],
    col: Float[Tensor, "r k half"], band: Band,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """From the gradient of the logits: that of q through the tables, and those of the tables."""
    s = s.unflatten(2, (band.th + band.window - 1, band.tw + band.window - 1))
    s = s.unflatten(1, (band.th, band.tw))  # n th tw kh kw
    down = _unskew(s.sum(4).transpose(1, 2)).transpose(1, 2)
    along = _unskew(s.sum(3))
    to_q, to_tables = [], []
    halves = band.by_head(q).chunk(2, 3)
    for x, logit, table in zip(halves, (down, along), (row, col), strict=True):
        g = band.by_head(logit.flatten(1, 2))  # B h t k
        to_q.append(g @ table.to(g.dtype))
        each = (g.mT @ x).sum(0)  # h k half
        to_tables.append(each.sum(0, keepdim=True) if len(table) == 1 else each)
    return torch.cat(to_q, 3).reshape(q.shape), to_tables[0], to_tables[1]


TILED = Kernel(
    forward=_forward,
    backward=_backward,
    takes=lambda *inputs: True,
    about="every call",
    device=None,
    dtypes=None,
    strided=("q", "k", "v", "grad"),
)
