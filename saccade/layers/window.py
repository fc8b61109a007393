"""Self-attention inside windows that tile the map (QnA-ViT's "SA" blocks).

    Y = softmax(Q K^T / sqrt(d) + b) V Wo,    b[i, j] = table[y_i - y_j, x_i - x_j]

within each window; the table of relative positions is Swin's, the windows are not shifted. A map
that the windows do not tile is filled up below and to the right, and the filling takes no part.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers import flax
from saccade.layers.bare import applied
from saccade.layers.init import lecun_normal_
from saccade.ops.precision import wide


class WindowAttention(nn.Module):
    """Compare the pixels of each window with each other. Maps are B H W C, of any size."""

    undecayed = ("table",)

    def __init__(self, dim: int, heads: int, window: int):
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"WindowAttention: heads must divide dim, got {dim=} {heads=}")
        if window < 1:
            raise ValueError(f"WindowAttention: a window has at least one pixel, got {window=}")
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.mix = nn.Linear(dim, dim, bias=False)
        side = 2 * window - 1
        self.table = nn.Parameter(torch.empty(side * side, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        lecun_normal_(self.qkv.weight)
        lecun_normal_(self.mix.weight)
        nn.init.zeros_(self.table)

    def bias(self, h: int, w: int) -> Float[Tensor, "heads N N"]:
        """b for windows of h x w pixels, at most as large as the table knows."""
        y, x = (torch.arange(n, device=self.table.device) for n in (h, w))
        last = self.window - 1
        dy, dx = (i[:, None] - i + last for i in (y, x))
        place = dy[:, None, :, None] * (2 * last + 1) + dx[None, :, None, :]  # y_i x_i y_j x_j
        return self.table[place.flatten()].view(h * w, h * w, -1).permute(2, 0, 1)

    def split(
        self, x: Float[Tensor, "B H W C"]
    ) -> tuple[Float[Tensor, "3 n heads N d"], Float[Tensor, "m heads N N"], tuple[int, int]]:
        """q, k and v of the n windows of all images; what is added to q k^T; the windows' sides.

        The bias comes once for all (m = 1), or where filling must be masked, per window (m = n).
        """
        H, W = x.shape[1:3]
        h = w = self.window
        if not torch.compiler.is_compiling():  # there, sizes may be symbols
            h, w = min(h, H), min(w, W)  # a window larger than the map is the map
        qkv = (
            tiled(applied(self.qkv, x), h, w)
            .unflatten(2, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        bias = self.bias(h, w)[None]
        if torch.compiler.is_exporting() or H % h or W % w:
            inside = tiled(torch.ones_like(x[..., :1]), h, w).unsqueeze(1).mT  # n 1 1 N
            bias = bias.masked_fill(inside == 0, -torch.inf)
        return qkv, bias.to(qkv.dtype), (h, w)

    def weights(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "n heads N N"]:
        """How much each pixel (row) takes from each other one (column) of its window."""
        (q, k, _), bias, _ = self.split(x)
        logits = q @ k.mT * q.shape[-1] ** -0.5 + bias
        return torch.softmax(logits, -1, dtype=wide(logits.dtype))

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        (q, k, v), bias, (h, w) = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = y.transpose(1, 2)
        if torch.compiler.is_exporting():  # ONNX lays the product out in another order
            y = y.clone(memory_format=torch.contiguous_format)
        y = y.flatten(2)  # n N C
        return applied(self.mix, untiled(y, x.shape[1], x.shape[2], h, w))


# -- windows --------------------------------------------------------------------------------------
#
# In a graph that is exported for every size, an axis as long as there are rows of windows would be
# taken for longer than one. There, pixels are picked by their index instead of by axes.


def tiled(x: Float[Tensor, "B H W C"], h: int, w: int) -> Float[Tensor, "n N C"]:
    """The h x w windows of all images, row by row; zeros fill the last ones."""
    H, W = x.shape[1:3]
    rows, columns = (H + h - 1) // h, (W + w - 1) // w
    if torch.compiler.is_exporting():
        i = torch.arange(rows * columns * h * w, device=x.device)
        window, pixel = i // (h * w), i % (h * w)
        above, left = _divided(window, columns)
        row, column = above * h + pixel // w, left * w + pixel % w
        picked = row.clamp(max=H - 1) * W + column.clamp(max=W - 1)
        inside = ((row < H) & (column < W)).to(x.dtype)
        tokens = x.flatten(1, 2).index_select(1, picked) * inside[:, None]
        return tokens.flatten(0, 1).unflatten(0, (-1, h * w))
    x = F.pad(x, (0, 0, 0, columns * w - W, 0, rows * h - H))
    x = x.view(-1, rows, h, columns, w, x.shape[3])
    return x.transpose(2, 3).reshape(-1, h * w, x.shape[5])


def untiled(x: Float[Tensor, "n N C"], H: int, W: int, h: int, w: int) -> Float[Tensor, "B H W C"]:
    """The maps that `tiled` took apart."""
    rows, columns = (H + h - 1) // h, (W + w - 1) // w
    if torch.compiler.is_exporting():
        row, column = _divided(torch.arange(H * W, device=x.device), W)
        place = (row // h * columns + column // w) * h * w + row % h * w + column % w
        x = x.flatten(0, 1).unflatten(0, (-1, rows * columns * h * w))
        return x.index_select(1, place).unflatten(1, (H, W))
    x = x.view(-1, rows, columns, h, w, x.shape[2]).transpose(2, 3)
    return x.reshape(-1, rows * h, columns * w, x.shape[5])[:, :H, :W]


def _divided(i: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """Quotient and rest, in operations that ONNX has for a divisor known at run time alone."""
    quotient = i // by
    return quotient, i - quotient * by


def flax_entries(layer: WindowAttention) -> flax.Entries:
    """The parameters of the authors' MultiHeadSelfAttention, whose q, k and v alternate by head."""

    def to_ours(t: Tensor) -> Tensor:
        return t.mT.unflatten(0, (layer.heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def to_theirs(t: Tensor) -> Tensor:
        return t.unflatten(0, (3, layer.heads, -1)).transpose(0, 1).flatten(0, 2).mT

    return {
        "to_qkv/kernel": flax.Entry("qkv.weight", to_ours, to_theirs),
        **flax.linear("to_out", "mix", bias=False),
        "RelativePositionalEmbedding_0/rpe_bias": flax.Entry("table"),
    }
