"""Key-only attention on CPU as one operator: a linear map per image, made from that image's means.

    mean = softmax over tokens of x ask^T, times x    ask = Ws Wk / sqrt(d)           B h C
    g    = Wk mean + bk                               each head its own channels      B C
    S    = P diag(g)                                  P = U2 U1                       B C C
    M    = S Wv + Q                                   Q = U2 Wk                       B C C
    y    = x M^T + S bv + c                           c = U2 (b1 + bk) + b2           B N C

Matrices are as `nn.Linear` keeps them, (out, in). The tokens meet two kernels, the one that takes
their means and the one that multiplies them; what lies between has no tokens and is left to torch.
Backward the tokens' gradient is written once, by the product, and the means' is added where it is.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.linear import add_gradients, add_gradients_each, times, times_each
from saccade.ops.native.linglo import means, means_backward
from saccade.ops.second import second


def key_only(x: Float[Tensor, "B N C"], *letters: Tensor) -> Float[Tensor, "B N C"]:
    """The layer by its letters, in the order of `saccade.ops.linglo.Weights`."""
    return torch.ops.saccade.key_only(x, *letters)[0]


@torch.library.custom_op("saccade::key_only", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor, wk: Tensor, bk: Tensor, wv: Tensor, bv: Tensor, ws: Tensor,
    u1: Tensor, b1: Tensor, u2: Tensor, b2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y; and for the backward M, P, g, and the means with the log-sum-exp of their logits."""
    _check(x, wk, ws)
    y = x.new_empty(x.shape)
    (B, _, C), (h, _) = x.shape, ws.shape
    x, wk = x.contiguous(), wk.contiguous()
    mean, lse = means(x, _ask(ws, wk))
    by_head = torch.baddbmm(bk.view(h, 1, -1), mean.transpose(0, 1), wk.view(h, -1, C).mT)
    g = by_head.transpose(0, 1).reshape(B, C)
    p = u2 @ u1
    s, m = p * g[:, None], x.new_empty(B, C, C)
    times(s.view(-1, C), wv.mT, None, m.view(-1, C))
    m += u2 @ wk
    bias = torch.addmm(torch.addmv(b2, u2, b1 + bk), g * bv, p.mT)
    times_each(x, m, bias, y)
    return y, m, p, g, mean, lse


def _check(x: Tensor, wk: Tensor, ws: Tensor) -> None:
    C, h = x.shape[2], len(ws)
    if x.dtype != torch.float32 or wk.dtype != x.dtype or wk.shape != (C, C) or C % h:
        raise ValueError(
            f"key_only: x is B N C and ws h C, in float32, got {x.shape=} {wk.shape=} "
            f"{ws.shape=} {x.dtype=}"
        )


@_forward.register_fake
def _(x, wk, bk, wv, bv, ws, u1, b1, u2, b2):
    _check(x, wk, ws)
    (B, N, C), h = x.shape, len(ws)
    shapes = (B, N, C), (B, C, C), (C, C), (B, C), (B, h, C), (B, h)
    return tuple(x.new_empty(shape) for shape in shapes)


def _scale(ws: Tensor) -> float:
    return (ws.shape[1] // len(ws)) ** -0.5


def _ask(ws: Tensor, wk: Tensor) -> Tensor:
    return torch.addmm(ws, ws, wk, beta=0, alpha=_scale(ws))


@torch.library.custom_op("saccade::key_only_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    x: Tensor, wk: Tensor, bk: Tensor, wv: Tensor, bv: Tensor, ws: Tensor,
    u1: Tensor, b1: Tensor, u2: Tensor, b2: Tensor,
    m: Tensor, p: Tensor, g: Tensor, mean: Tensor, lse: Tensor,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:  # fmt: skip
    """Line by line, from the last of the equations to the first."""
    (B, _, C), (h, _) = x.shape, ws.shape
    grad, x, m, wk = grad.contiguous(), x.contiguous(), m.contiguous(), wk.contiguous()
    dx = torch.empty_like(x)  # before all that is small: it wants the place of a map that is gone
    # y = x M^T + S bv + c
    dm, dbias = x.new_zeros(B, C, C), x.new_zeros(B, C)
    add_gradients_each(grad, x, dm, dbias)
    times_each(grad, m.mT, None, dx)
    dc = dbias.sum(0)
    # M = S Wv + Q
    s = p * g[:, None]
    ds, dwv = torch.empty_like(s), torch.zeros_like(wk)
    times(dm.view(-1, C), wv, None, ds.view(-1, C))
    ds.addcmul_(dbias[:, :, None], bv)
    add_gradients(s.view(-1, C), dm.view(-1, C), dwv, None)
    dbv = s.view(-1, C).mT @ dbias.view(-1)
    dq = dm.sum(0)
    # S = P diag(g)
    dg = (ds * p).sum(1)
    dp = ds.mul_(g[:, None]).sum(0)
    # g = Wk mean + bk
    of_head = dg.view(B, h, -1).transpose(0, 1)  # h B d
    dmean = torch.bmm(of_head, wk.view(h, -1, C)).transpose(0, 1)
    dwk = torch.bmm(of_head.mT, mean.transpose(0, 1)).view(C, C)
    # mean
    dask = means_backward(dmean, x, _ask(ws, wk), mean, lse, dx, add=True)
    dask *= _scale(ws)
    # ask, P, Q, c
    dws = dask @ wk.mT
    dwk.addmm_(ws.mT, dask).addmm_(u2.mT, dq)
    du1, db1 = u2.mT @ dp, u2.mT @ dc
    du2 = (dp @ u1.mT).addmm_(dq, wk.mT).addr_(dc, b1 + bk)
    return dx, dwk, dg.sum(0).add_(db1), dwv, dbv, dws, du1, db1, du2, dc


@_backward.register_fake
def _(grad, *tensors):
    return tuple(t.new_empty(t.shape) for t in tensors[:10])


def _keep(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # nobody asks for those of what is kept
    ctx.save_for_backward(*inputs, *output[1:])


def _differentiate(ctx, grad, *_):
    return torch.ops.saccade.key_only_backward(grad, *ctx.saved_tensors)


def _keep_again(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:11])


def _differentiate_again(ctx, *weights):
    from saccade.ops.linglo import Weights, collapsed

    def plain(x, *letters):
        return collapsed(x, Weights(*letters))

    grad, *tensors = ctx.saved_tensors
    return *second(plain, grad, tensors, weights), *[None] * 5


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_again)


# -- FLOPs: as the plain form counts them ---------------------------------------------------------


@register_flop_formula(torch.ops.saccade.key_only)
def _flops(x, wk, bk, wv, bv, ws, *_, **__) -> int:
    (B, N, C), h = x, ws[0]
    tokens = B * N * C * (C + 2 * h)
    summary = h * C * C + B * h * C * C  # ask, g
    small = (B + 2) * C**3 + (B + 1) * C * C  # M, P, Q; S bv and c
    return 2 * (tokens + summary + small)


@register_flop_formula(torch.ops.saccade.key_only_backward)
def _flops_backward(grad, *tensors, **_) -> int:
    return 2 * _flops(*tensors)
