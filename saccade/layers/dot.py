"""Dot-product attention over all tokens: what the cheap operators replace, kept to compare with.

Y = softmax(Q K^T / sqrt(d)) V Wo
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.ops.modes import transformed


class DotProductAttention(nn.Module):
    """Compare every token with every other; `fused=False` holds the N x N map in memory."""

    def __init__(self, dim: int, heads: int, fused: bool = True):
        super().__init__()
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

    def weights(self, x: Float[Tensor, "B *grid C"]) -> Float[Tensor, "B h N N"]:
        """How much each token (row) takes from each other one (column)."""
        q, k, _ = self.split(x.flatten(1, -2))
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)

    def forward(self, x: Float[Tensor, "B *grid C"]) -> Float[Tensor, "B *grid C"]:
        if self.fused and not transformed():  # the fused one has no forward derivative
            q, k, v = self.split(x.flatten(1, -2))
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = self.weights(x) @ self.split(x.flatten(1, -2))[2]
        return self.mix(y.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:-1])
