"""Key-only attention (LinGlo, eq. 2-4) as a layer.

    A = softmax over tokens of K Ws / sqrt(d)     saliency: one map per head
    G = sum over tokens of A K                    context:  one vector per head
    Y = ((G * V) U1 + K) U2

No token is compared with another, so the cost is linear in N.
"""

from jaxtyping import Float
from torch import Tensor, nn

from saccade.ops import linglo as ops


class KeyOnlyAttention(nn.Module):
    """Gate every token with one saliency-weighted summary of the image.

    `form` picks how it is computed, never what: "tokenwise", "folded", "collapsed", or the cheapest
    of them ("auto").

    Init: the four projections keep the variance of what they read (std 1/sqrt(C)) and the saliency
    gives logits of unit spread, so that the maps differ between tokens from the first step. With
    the usual std of 0.02 the context is below 3% of K and the saliency gets next to no gradient.
    """

    printed = "tokenwise"  # the form that counts of multiplications refer to

    def __init__(self, dim: int, heads: int, form: str = "auto"):
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"KeyOnlyAttention: heads must divide dim, got {dim=} {heads=}")
        if form not in ops.FORMS:
            raise ValueError(f"KeyOnlyAttention: form must be one of {ops.FORMS}, got {form=}")
        self.form = form
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.saliency = nn.Linear(dim, heads, bias=False)  # a bias would cancel in the softmax
        self.gate = nn.Linear(dim, dim)  # U1
        self.mix = nn.Linear(dim, dim)  # U2
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.key, self.value, self.gate, self.mix):
            nn.init.trunc_normal_(linear.weight, std=linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.saliency.weight, std=self.saliency.out_features**-0.5)

    def letters(self) -> ops.Weights:
        key, value, gate, mix = self.key, self.value, self.gate, self.mix
        return ops.Weights(
            key.weight, key.bias, value.weight, value.bias, self.saliency.weight,
            gate.weight, gate.bias, mix.weight, mix.bias,
        )  # fmt: skip

    def weights(self, x: Float[Tensor, "B *grid C"]) -> Float[Tensor, "B *grid h"]:
        """Where each head looks. `view` draws this; drawing needs no flag in forward."""
        a = ops.saliency(x.flatten(1, -2), self.letters())
        return a.unflatten(1, x.shape[1:-1])

    def forward(self, x: Float[Tensor, "B *grid C"]) -> Float[Tensor, "B *grid C"]:
        y = ops.key_only(x.flatten(1, -2), self.letters(), self.form)
        return y.unflatten(1, x.shape[1:-1])
