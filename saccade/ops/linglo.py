"""Key-only attention (LinGlo, eq. 2-4), in three forms that compute the same function.

    K = X Wk + bk,  V = X Wv + bv
    A = softmax over tokens of K Ws / sqrt(d)      saliency: one map per head
    G = sum over tokens of A K                     context:  one vector per head
    Y = ((G * V) U1 + b1 + K) U2 + b2

`tokenwise` is these equations in PyTorch: four N x C x C products; K and V of all tokens in memory.

The other forms use that G is one vector per image, which needs only the h saliency-weighted means
of X: sum A K = (sum A X) Wk + bk, and bk Ws cancels in the softmax. So K need not be computed:

    Y = (G * V) (U1 U2) + X (Wk U2) + c,           c = (b1 + bk) U2 + b2

is `folded`, three products. Given G the layer is even *linear* in X:

    Y = X (Wv diag(G) U1 U2 + Wk U2) + (G * bv) U1 U2 + c

is `collapsed`: one N x C x C product and one C x C x C product per image, neither K nor V. `native`
computes `collapsed` by C++ kernels, as one operator; the kernel for the means reads X once.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.linglo import NATIVE
from saccade.ops.operator import Operator
from saccade.ops.precision import no_autocast, wide


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


def key_only(
    x: Float[Tensor, "B N C"], w: Weights, backend: str = "auto"
) -> Float[Tensor, "B N C"]:
    """Gate every token with a saliency-weighted summary of the image, by the cheapest form."""
    return KEY_ONLY(x, *w, backend=backend)


fx.wrap("key_only")  # one node each to torch.fx
fx.wrap("gated")


def cheapest(B: int, N: int, C: int) -> str:
    """The form with the least work, in units of B C^2 multiplications.

    Products of weights run at two thirds of the speed of products with tokens. A form must save
    more than a tenth of the work to be faster, because its smaller operations cost time too.

    An exported graph must be right for every image size, so there the choice cannot depend on N:
    it is `collapsed`, the fastest form of large images, where most time is spent.
    """
    if torch.compiler.is_exporting():
        return "collapsed"
    B = max(B, 1)
    four, three, one = 4 * N, 3 * N + 3 * C / B, N + 1.5 * C + 3 * C / B
    if 1.1 * min(three, one) >= four:
        return "tokenwise"
    return "collapsed" if one <= three else "folded"


def tokenwise(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The equation as printed, token by token: the reference, and the fast path on small maps."""
    k = F.linear(x, w.wk, w.bk)
    v = F.linear(x, w.wv, w.bv)
    return F.linear(F.linear(gated(k, v, F.linear(k, w.ws)), w.u1, w.b1) + k, w.u2, w.b2)


def gated(
    k: Float[Tensor, "B N C"], v: Float[Tensor, "B N C"], logits: Float[Tensor, "B N h"]
) -> Float[Tensor, "B N C"]:
    """G * V, of keys, values and K Ws."""
    a = saliency(k, logits).mT  # B h N
    return _per_head(weighted_sum(a, k)).to(v.dtype)[:, None] * v


def folded(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The same function without K: where K was used, its weights are multiplied into others."""
    g = _context(x, w)
    gated = g[:, None] * F.linear(x, w.wv, w.bv)
    return F.linear(gated, w.u2 @ w.u1) + F.linear(x, w.u2 @ w.wk, _constant(w))


def collapsed(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The same function as one image-conditioned linear map, without K or V."""
    both = (w.u2 @ w.u1).mT  # U1 U2, as the equation writes it: (in, out)
    g = _context(x, w)
    m = (w.wv.mT * g[:, None]) @ both + (w.u2 @ w.wk).mT  # B C C
    bias = torch.addmm(_constant(w), g * w.bv, both)
    return torch.baddbmm(bias.to(m.dtype)[:, None], x.to(m.dtype), m)


def saliency(k: Float[Tensor, "B N C"], logits: Float[Tensor, "B N h"]) -> Float[Tensor, "B N h"]:
    """Where each head looks, of keys and K Ws: non-negative, summing to one over the tokens."""
    scaled = logits.mT * (k.shape[-1] // logits.shape[-1]) ** -0.5  # softmax runs along memory
    return torch.softmax(scaled, dim=-1, dtype=wide(scaled.dtype)).mT


def weighted_sum(a: Float[Tensor, "B h N"], x: Float[Tensor, "B N C"]) -> Float[Tensor, "B h C"]:
    """One summary of the tokens per head, summed in at least fp32 (A may be below fp16's range)."""
    with no_autocast(x.device):
        return a @ x.to(a.dtype)


def _context(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B C"]:
    """G without K."""
    ask = w.ws @ w.wk
    logits = (ask * (ask.shape[1] // len(ask)) ** -0.5) @ x.mT  # B h N: softmax along memory
    mean = weighted_sum(torch.softmax(logits, dim=-1, dtype=wide(logits.dtype)), x)  # B h C
    return _per_head(F.linear(mean.to(w.wk.dtype), w.wk, w.bk))


def _constant(w: Weights) -> Float[Tensor, "C"]:
    return F.linear(w.b1 + w.bk, w.u2, w.b2)


def _per_head(g: Float[Tensor, "B h C"]) -> Float[Tensor, "B C"]:
    """Head i keeps its own i-th slice of channels."""
    h = g.shape[1]
    if h == 1:
        return g.flatten(1)
    return g.unflatten(2, (h, g.shape[2] // h)).diagonal(dim1=1, dim2=2).mT.flatten(1)


# -- the operators --------------------------------------------------------------------------------


def _check(x: Tensor, *letters: Tensor) -> None:
    C, h = x.shape[-1], len(Weights(*letters).ws)
    if h < 1 or C % h:
        raise ValueError(f"key_only: ws is h C with h dividing C, got {h=} {C=}")


def _flops(x: Any, *letters: Any) -> int:
    """As printed: K, V, U1 and U2 of every token, the logits, each head's sum of its channels."""
    (B, N, C), h = x, letters[4][0]
    return 2 * B * N * C * (4 * C + h + 1)


def _of(form: Any) -> Any:
    def by_letters(
        x: Float[Tensor, "B N C"], wk: Float[Tensor, "C C"], bk: Float[Tensor, "C"],
        wv: Float[Tensor, "C C"], bv: Float[Tensor, "C"], ws: Float[Tensor, "h C"],
        u1: Float[Tensor, "C C"], b1: Float[Tensor, "C"], u2: Float[Tensor, "C C"],
        b2: Float[Tensor, "C"],
    ) -> Tensor:  # fmt: skip
        return form(x, Weights(wk, bk, wv, bv, ws, u1, b1, u2, b2))

    return by_letters


KEY_ONLY = Operator(
    "key_only",
    plain={"collapsed": _of(collapsed), "tokenwise": _of(tokenwise), "folded": _of(folded)},
    kernels={"native": NATIVE},
    check=_check,
    output=lambda x, *_: x.new_empty(x.shape),
    flops=_flops,
    keeps=5,
    cheapest=lambda x, *_: cheapest(*x.shape),
)
