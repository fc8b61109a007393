"""Key-only attention (LinGlo, eq. 2-4), in two forms that compute the same function.

    K = X Wk + bk,  V = X Wv + bv
    A = softmax over tokens of K Ws / sqrt(d)      saliency: one map per head
    G = sum over tokens of A K                     context:  one vector per head
    Y = ((G * V) U1 + b1 + K) U2 + b2

`tokenwise` reads like that: four N x C x C products, K and V held for every token.

`collapsed` uses that G is one vector per image. Given G, the layer is *linear* in X:

    Y = X (Wv diag(G) U1 U2 + Wk U2) + (G * bv) U1 U2 + (b1 + bk) U2 + b2

and G itself needs only the h saliency-weighted means of X, because sum A K = (sum A X) Wk + bk and
the saliency bias bk Ws cancels in the softmax. One N x C x C product, one C x C x C product per
image, no K and no V: cheaper wherever the image has more tokens than the layer has channels.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.precision import no_autocast, wide

FORMS = ("auto", "tokenwise", "collapsed")


class Weights(NamedTuple):
    """The letters of the equation, each matrix as `nn.Linear` keeps it (out, in)."""

    wk: Float[Tensor, "C C"]
    bk: Float[Tensor, "C"]
    wv: Float[Tensor, "C C"]
    bv: Float[Tensor, "C"]
    ws: Float[Tensor, "h C"]
    u1: Float[Tensor, "C C"]
    b1: Float[Tensor, "C"]
    u2: Float[Tensor, "C C"]
    b2: Float[Tensor, "C"]


def key_only(x: Float[Tensor, "B N C"], w: Weights, form: str = "auto") -> Float[Tensor, "B N C"]:
    """Gate every token with a saliency-weighted summary of the image, by the cheaper form."""
    if form == "auto":
        form = cheapest(*x.shape)
    return collapsed(x, w) if form == "collapsed" else tokenwise(x, w)


def cheapest(B: int, N: int, C: int) -> str:
    """The form with fewer multiplications: 4 B N C^2 against B N C^2 + (B + 2) C^3.

    A graph that is being exported must hold for every size, so there the choice may not look at N:
    it takes `collapsed`, which wins at the large sizes where the time goes.
    """
    if torch.compiler.is_exporting():
        return "collapsed"
    return "collapsed" if 3 * B * N > (B + 2) * C else "tokenwise"


def tokenwise(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The equation as printed, token by token: the reference, and the fast path on small maps."""
    heads = w.ws.shape[0]
    k = F.linear(x, w.wk, w.bk)
    v = F.linear(x, w.wv, w.bv)
    a = _softmax_over_tokens(F.linear(k, w.ws), k.shape[-1] // heads)
    g = _per_head(weighted_sum(a, k))  # B C
    return F.linear(F.linear(g.to(v.dtype)[:, None] * v, w.u1, w.b1) + k, w.u2, w.b2)


def collapsed(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The same function as one image-conditioned linear map, without K or V."""
    heads, C = w.ws.shape
    mean = weighted_sum(saliency(x, w), x)  # B h C
    g = torch.einsum("bhc,hdc->bhd", mean.to(w.wk.dtype), w.wk.unflatten(0, (heads, C // heads)))
    g = g.flatten(1) + w.bk  # B C
    u = w.u2 @ w.u1  # (U1 U2) as out, in
    gated = u * g[:, None]  # B C C: u diag(g)
    m = gated @ w.wv + w.u2 @ w.wk
    bias = gated @ w.bv + F.linear(w.b1 + w.bk, w.u2, w.b2)
    return torch.baddbmm(bias[:, None].to(m.dtype), x.to(m.dtype), m.mT)


def saliency(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N h"]:
    """Where each head looks: non-negative, summing to one over the tokens."""
    heads, C = w.ws.shape
    return _softmax_over_tokens(F.linear(x, w.ws @ w.wk), C // heads)


def weighted_sum(a: Float[Tensor, "B N h"], x: Float[Tensor, "B N C"]) -> Float[Tensor, "B h C"]:
    """One summary of the tokens per head, summed in at least fp32 (A may be below fp16's range)."""
    with no_autocast(x.device):
        return a.mT @ x.to(a.dtype)


def _softmax_over_tokens(logits: Float[Tensor, "B N h"], d: int) -> Float[Tensor, "B N h"]:
    return torch.softmax(logits * d**-0.5, dim=1, dtype=wide(logits.dtype))


def _per_head(g: Float[Tensor, "B h C"]) -> Float[Tensor, "B C"]:
    """Head i keeps its own i-th slice of channels."""
    h = g.shape[1]
    return g.unflatten(2, (h, g.shape[2] // h)).diagonal(dim1=1, dim2=2).mT.flatten(1)
