"""Key-only attention (LinGlo, eq. 2-4), in three forms that compute the same function.

    K = X Wk + bk,  V = X Wv + bv
    A = softmax over tokens of K Ws / sqrt(d)      saliency: one map per head
    G = sum over tokens of A K                     context:  one vector per head
    Y = ((G * V) U1 + b1 + K) U2 + b2

`tokenwise` reads like that: four N x C x C products, K and V held for every token.

The others use that G is one vector per image, and needs only the h saliency-weighted means of X:
sum A K = (sum A X) Wk + bk, and bk Ws cancels in the softmax. So K need not exist:

    Y = (G * V) (U1 U2) + X (Wk U2) + c,           c = (b1 + bk) U2 + b2

is `folded`, three products. Given G the layer is even *linear* in X:

    Y = X (Wv diag(G) U1 U2 + Wk U2) + (G * bv) U1 U2 + c

is `collapsed`: one N x C x C product and one C x C x C product per image, neither K nor V. Where
saccade.ops.native has kernels, the means come from one that reads X once, and all of `collapsed` is
one operator.
"""

from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.native.linglo import summary, supports
from saccade.ops.native.linglo_layer import key_only as key_only_kernels
from saccade.ops.precision import autocasts, no_autocast, wide
from saccade.ops.second import transformed

FORMS = ("auto", "tokenwise", "folded", "collapsed")


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
    """Gate every token with a saliency-weighted summary of the image, by the cheapest form."""
    forms = {"tokenwise": tokenwise, "folded": folded, "collapsed": collapsed}
    return forms[cheapest(*x.shape) if form == "auto" else form](x, w)


def cheapest(B: int, N: int, C: int) -> str:
    """The form with the least work, in units of B C^2 multiplications.

    Products of weights run at two thirds of the speed of products with tokens, and a form that
    saves less than a tenth saves nothing once its smaller operations are paid.

    A graph that is being exported must hold for every size, so there the choice may not look at N:
    it takes `collapsed`, which wins at the large sizes where the time goes.
    """
    if torch.compiler.is_exporting():
        return "collapsed"
    four, three, one = 4 * N, 3 * N + 3 * C / B, N + 1.5 * C + 3 * C / B
    if 1.1 * min(three, one) >= four:
        return "tokenwise"
    return "collapsed" if one <= three else "folded"


def tokenwise(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The equation as printed, token by token: the reference, and the fast path on small maps."""
    k = F.linear(x, w.wk, w.bk)
    v = F.linear(x, w.wv, w.bv)
    g = _per_head(weighted_sum(_attend(k, w.ws), k))  # B C
    return F.linear(F.linear(g.to(v.dtype)[:, None] * v, w.u1, w.b1) + k, w.u2, w.b2)


def folded(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The same function without K: its two uses meet in weights."""
    g = _context(x, w)
    gated = g[:, None] * F.linear(x, w.wv, w.bv)
    return F.linear(gated, w.u2 @ w.u1) + F.linear(x, w.u2 @ w.wk, _constant(w))


def collapsed(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N C"]:
    """The same function as one image-conditioned linear map, without K or V."""
    if _native(x, w):
        return key_only_kernels(x, *w)
    both = (w.u2 @ w.u1).mT  # U1 U2, as the equation writes it: (in, out)
    g = _context(x, w)
    m = (w.wv.mT * g[:, None]) @ both + (w.u2 @ w.wk).mT  # B C C
    bias = torch.addmm(_constant(w), g * w.bv, both)
    return _mapped(x.to(m.dtype), m, bias.to(m.dtype))


def saliency(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B N h"]:
    """Where each head looks: non-negative, summing to one over the tokens."""
    return _attend(x, w.ws @ w.wk).mT


def weighted_sum(a: Float[Tensor, "B h N"], x: Float[Tensor, "B N C"]) -> Float[Tensor, "B h C"]:
    """One summary of the tokens per head, summed in at least fp32 (A may be below fp16's range)."""
    with no_autocast(x.device):
        return a @ x.to(a.dtype)


def _attend(x: Float[Tensor, "B N C"], ws: Float[Tensor, "h C"]) -> Float[Tensor, "B h N"]:
    h, C = ws.shape
    logits = (ws * (C // h) ** -0.5) @ x.mT  # heads before tokens: the softmax runs along memory
    return torch.softmax(logits, dim=-1, dtype=wide(logits.dtype))


def _context(x: Float[Tensor, "B N C"], w: Weights) -> Float[Tensor, "B C"]:
    """G without K."""
    ask = w.ws @ w.wk
    if _native(x, w):
        mean = summary(x, ask * (ask.shape[1] // len(ask)) ** -0.5)
    else:
        mean = weighted_sum(_attend(x, ask), x)  # B h C
    return _per_head(F.linear(mean.to(w.wk.dtype), w.wk, w.bk))


def _native(x: Float[Tensor, "B N C"], w: Weights) -> bool:
    plain = torch.compiler.is_exporting() or transformed() or not supports(x)
    return not plain and w.wk.dtype == x.dtype and native.available()


def _constant(w: Weights) -> Float[Tensor, "C"]:
    return F.linear(w.b1 + w.bk, w.u2, w.b2)


def _per_head(g: Float[Tensor, "B h C"]) -> Float[Tensor, "B C"]:
    """Head i keeps its own i-th slice of channels."""
    h = g.shape[1]
    if h == 1:
        return g.flatten(1)
    return g.unflatten(2, (h, g.shape[2] // h)).diagonal(dim1=1, dim2=2).mT.flatten(1)


# -- one linear map per image ---------------------------------------------------------------------


def _mapped(
    x: Float[Tensor, "B N C"], m: Float[Tensor, "B C D"], bias: Float[Tensor, "B D"]
) -> Float[Tensor, "B N D"]:
    plain = torch.compiler.is_exporting() or not torch.is_grad_enabled()
    if plain or autocasts(x.device):
        return torch.baddbmm(bias[:, None], x, m)
    return _Mapped.apply(x, m, bias)


@no_type_check  # tracers look into it, and cannot see through a checking wrapper
class _Mapped(torch.autograd.Function):
    """X M + bias. Its backward lays M's transpose out anew: few numbers, and a faster product."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, m: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(bias[:, None], x, m)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, m, _ = inputs
        ctx.save_for_backward(x, m)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grad_outputs
        x, m = ctx.saved_tensors
        dx, dm, dbias = ctx.needs_input_grad
        return (
            torch.bmm(g, m.mT.contiguous()) if dx else None,
            torch.bmm(x.mT, g) if dm else None,
            g.sum(1) if dbias else None,
        )
