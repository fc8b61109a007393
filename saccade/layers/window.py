"""Self-attention inside windows that tile the map (QnA-ViT's "SA" blocks).

    Y = softmax(Q K^T / sqrt(d) + b) V Wo,    b[i, j] = table[y_i - y_j, x_i - x_j]

within each window; the table of relative positions is Swin's, the windows are not shifted. A map
that the windows do not tile is padded below and to the right, and attention ignores the padding.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.layers import flax
from saccade.layers.init import lecun_normal_
from saccade.layers.layout import MapLayer
from saccade.layers.norm import of_channels
from saccade.layers.untouched import applied, readable, untouched
from saccade.ops import window as ops
from saccade.ops.native.pixels import PixelProduct, WindowsResidual
from saccade.ops.native.residual import Norm, serves


@readable
class WindowAttention(MapLayer):
    """Compare the pixels of each window with each other. Maps are of any size.

    `layout` and `size` are those of `MapLayer`. A mask of pairs is (n, N, N) or (n, heads, N, N) as
    Swin has it: n windows in reading order, the same of every image, or all of all images.
    """

    undecayed = ("table",)
    pairs = True

    def __init__(
        self,
        dim: int,
        heads: int,
        window: int,
        *,
        layout: str | None = None,
        size: Sequence[int] | None = None,
    ):
        super().__init__()
        self.place(dim, layout, size)
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

    def of_all_heads(self) -> Float[Tensor, "t heads"]:
        """The table, from which the equation takes the number of heads."""
        table = self.table
        if isinstance(table, Tensor) and table.shape[1:] != (self.heads,):  # not in torch.fx
            raise ValueError(
                f"WindowAttention: the table has a column for each of {self.heads} heads, "
                f"got {tuple(table.shape)}"
            )
        return table

    def weights(
        self,
        x: Float[Tensor, "B H W C"],
        padding: Bool[Tensor, "B H W"] | None = None,
        pairs: Tensor | None = None,
    ) -> Float[Tensor, "n heads N N"]:
        """How much each pixel (row) takes from each other one (column) of its window."""
        qkv, table = applied(self.qkv, x), self.of_all_heads()
        return ops.masked_window_weights(qkv, table, self.window, padding, pairs)

    def on_map(
        self,
        x: Float[Tensor, "B H W C"],
        padding: Bool[Tensor, "B H W"] | None = None,
        pairs: Tensor | None = None,
    ) -> Float[Tensor, "B H W C"]:
        qkv, table = applied(self.qkv, x), self.of_all_heads()
        if padding is None and pairs is None:
            y = ops.window_attention(qkv, table, self.window)
        else:
            y = ops.masked_window_attention(qkv, table, self.window, padding, pairs)
        return applied(self.mix, y)

    def ready_after(self, x: Float[Tensor, "B H W C"], norm: Any) -> WindowsResidual | None:
        """x + self(norm(x)) as one call, for inference; None where modules must be called."""
        qkv, mix, C = self.qkv, self.mix, x.shape[3]
        if type(self) is not WindowAttention or self.layout not in (None, "NHWC"):
            return None
        if not untouched(x, qkv, mix):
            return None
        if not of_channels(norm, x) or qkv.weight.shape != (3 * C, C) or mix.weight.shape != (C, C):
            return None
        tensors = [*qkv.parameters(), *mix.parameters(), self.table, norm.weight, norm.bias]
        if not serves(*tensors):
            return None
        ops.WINDOW_ATTENTION.check(x.new_empty(0, 0, 0, 3 * C), self.of_all_heads(), self.window)
        project, blend = (_product(layer) for layer in (qkv, mix))
        bias = lambda h, w: ops.bias_of(self.table, self.window, h, w)  # noqa: E731
        numbers = Norm(norm.weight, norm.bias, norm.eps)
        return WindowsResidual(numbers, project, blend, self.table, self.window, bias)


def _product(layer: nn.Linear) -> PixelProduct:
    outputs, inputs = layer.weight.shape
    return PixelProduct(outputs, inputs, layer.parameters(), lambda: (layer.weight, layer.bias))


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
