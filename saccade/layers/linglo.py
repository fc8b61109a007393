"""Key-only attention (LinGlo, eq. 2-4) as a layer.

    A = softmax over tokens of K Ws / sqrt(d)     saliency: one map per head
    G = sum over tokens of A K                    context:  one vector per head
    Y = ((G * V) U1 + K) U2

No token is compared with another, so the cost is linear in N.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.layers.layout import MapLayer
from saccade.layers.norm import of_channels
from saccade.layers.untouched import readable, untouched
from saccade.ops import linglo as ops
from saccade.ops.native.residual import KeyOnlyResidual, Norm, serves
from saccade.ops.precision import hidden_logit
from saccade.ops.residual import KEY_ONLY_RESIDUAL


@readable
class KeyOnlyAttention(MapLayer):
    """Gate every token with one saliency-weighted summary of the image.

    `backend` selects the form of the computation: "tokenwise", "folded", "collapsed", "native", or
    the cheapest of them ("auto"). `layout`, `size` and `prefix` are those of `MapLayer`; tokens
    need no size, and class tokens are tokens like others.

    Init: the four projections keep the variance of what they read (std 1/sqrt(C)) and the saliency
    gives logits of unit spread, so that the maps differ between tokens from the first step. With
    the usual std of 0.02 the context is below 3% of K and the saliency gets next to no gradient.
    """

    gridless = True
    takes_prefix = True

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: str = "auto",
        *,
        layout: str | None = None,
        size: Sequence[int] | None = None,
        prefix: int = 0,
    ):
        super().__init__()
        self.place(dim, layout, size, prefix)
        if heads < 1 or dim % heads:
            raise ValueError(f"KeyOnlyAttention: heads must divide dim, got {dim=} {heads=}")
        if backend not in ("auto", *ops.KEY_ONLY.forms):
            raise ValueError(
                f"KeyOnlyAttention: backend must be 'auto' or one of {ops.KEY_ONLY.forms}, "
                f"got {backend=}"
            )
        self.backend = backend
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

    def letters(self, x: Float[Tensor, "B *grid C"]) -> ops.Weights | None:
        """The parameters as the equation calls them; None where modules must be called instead."""
        key, value, saliency, gate, mix = self.key, self.value, self.saliency, self.gate, self.mix
        if not untouched(x, key, value, saliency, gate, mix) or saliency.bias is not None:
            return None
        square = (x.shape[-1],) * 2
        if any(part.weight.shape != square for part in (key, value, gate, mix)):
            return None
        biases = key.bias, value.bias, gate.bias, mix.bias
        if any(bias is None for bias in biases):
            return None
        return ops.Weights(
            key.weight, key.bias, value.weight, value.bias, saliency.weight,
            gate.weight, gate.bias, mix.weight, mix.bias,
        )  # fmt: skip

    def ready_after(self, x: Float[Tensor, "B H W C"], norm: Any) -> KeyOnlyResidual | None:
        """x + self(norm(x)) as one call, for inference; None where modules must be called."""
        letters = self._letters_after(x, norm)
        if letters is None or not serves(*letters, norm.weight, norm.bias):
            return None
        KEY_ONLY_RESIDUAL.check(x, norm.weight, norm.bias, *letters, norm.eps)
        return KeyOnlyResidual(Norm(norm.weight, norm.bias, norm.eps), *letters)

    def after(self, x: Float[Tensor, "B H W C"], norm: Any) -> Float[Tensor, "B H W C"] | None:
        """x + self(norm(x)) as one operator, for graphs; None where modules must be called."""
        letters = self._letters_after(x, norm)
        if letters is None:
            return None
        return KEY_ONLY_RESIDUAL(x, norm.weight, norm.bias, *letters, norm.eps)

    def _letters_after(self, x: Tensor, norm: nn.Module) -> ops.Weights | None:
        if self.backend != "auto" or self.layout == "NCHW" or not of_channels(norm, x):
            return None
        return self.letters(x)

    def weights(
        self, x: Float[Tensor, "B *grid C"], padding: Bool[Tensor, "B *grid"] | None = None
    ) -> Float[Tensor, "B *grid h"]:
        """Where each head looks. `view` draws this; drawing needs no flag in forward."""
        k = self.key(x.flatten(1, -2))
        return ops.saliency(k, _masked(self.saliency(k), padding)).unflatten(1, x.shape[1:-1])

    def on_map(
        self, x: Float[Tensor, "B *grid C"], padding: Bool[Tensor, "B *grid"] | None = None
    ) -> Float[Tensor, "B *grid C"]:
        letters = self.letters(x) if padding is None else None
        tokens = x.flatten(1, -2)
        if letters is not None:
            return ops.key_only(tokens, letters, self.backend).unflatten(1, x.shape[1:-1])
        k, v = self.key(tokens), self.value(tokens)
        gated = ops.gated(k, v, _masked(self.saliency(k), padding))
        return self.mix(self.gate(gated) + k).unflatten(1, x.shape[1:-1])


def _masked(
    logits: Float[Tensor, "B N h"], padding: Bool[Tensor, "B *grid"] | None
) -> Float[Tensor, "B N h"]:
    """Padding gets no weight; where everything is padding, the weights are equal."""
    if padding is None:
        return logits
    return logits.masked_fill(padding.flatten(1)[..., None], hidden_logit(logits))
