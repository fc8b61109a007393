"""Dot-product attention over all tokens, to compare the cheap operators with.

Y = softmax(Q K^T / sqrt(d)) V Wo
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.layout import MapLayer
from saccade.ops.modes import transformed
from saccade.ops.precision import hidden_logit


class DotProductAttention(MapLayer):
    """Compare every token with every other; `fused=False` holds the N x N map in memory.

    `layout`, `size` and `prefix` are those of `MapLayer`; tokens need no size.
    """

    gridless = True
    pairs = True
    takes_prefix = True

    def __init__(
        self,
        dim: int,
        heads: int,
        fused: bool = True,
        *,
        layout: str | None = None,
        size: Sequence[int] | None = None,
        prefix: int = 0,
    ):
        super().__init__()
        self.place(dim, layout, size, prefix)
        if heads < 1 or dim % heads:
            raise ValueError(f"DotProductAttention: heads must divide dim, got {dim=} {heads=}")
        self.heads = heads
        self.fused = fused
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mix = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.qkv, self.mix):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def split(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "3 B h N d"]:
        return self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def weights(
        self,
        x: Float[Tensor, "B *grid C"],
        padding: Bool[Tensor, "B *grid"] | None = None,
        pairs: Tensor | None = None,
    ) -> Float[Tensor, "B h N N"]:
        """How much each token (row) takes from each other one (column)."""
        q, k, _ = self.split(x.flatten(1, -2))
        logits = q @ k.mT * q.shape[-1] ** -0.5
        bias = _bias(logits, padding, pairs)
        return (logits if bias is None else logits + bias).softmax(-1)

    def on_map(
        self,
        x: Float[Tensor, "B *grid C"],
        padding: Bool[Tensor, "B *grid"] | None = None,
        pairs: Tensor | None = None,
    ) -> Float[Tensor, "B *grid C"]:
        if self.fused and not transformed():  # the fused one has no forward derivative
            q, k, v = self.split(x.flatten(1, -2))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=_bias(q, padding, pairs))
        else:
            y = self.weights(x, padding, pairs) @ self.split(x.flatten(1, -2))[2]
        return self.mix(y.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:-1])


def _bias(
    like: Tensor, padding: Bool[Tensor, "B *grid"] | None, pairs: Tensor | None
) -> Tensor | None:
    """Masks as a bias of the logits: B 1 1 N for the padding, plus the mask of pairs."""
    bias = None
    if padding is not None:
        bias = torch.zeros_like(padding, dtype=like.dtype).masked_fill(padding, hidden_logit(like))
        bias = bias.flatten(1)[:, None, None]
    if pairs is None:
        return bias
    if pairs.dtype == torch.bool:
        pairs = torch.zeros_like(pairs, dtype=like.dtype).masked_fill(~pairs, hidden_logit(like))
    pairs = pairs.to(like.dtype)
    return pairs if bias is None else pairs + bias
