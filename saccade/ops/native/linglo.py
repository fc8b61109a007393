"""Key-only attention on CPU: a linear map per image, made from that image's means.

    mean = softmax over tokens of x ask^T, times x    ask = Ws Wk / sqrt(d)           B h C
    g    = Wk mean + bk                               each head its own channels      B C
    S    = P diag(g)                                  P = U2 U1                       B C C
    M    = S Wv + Q                                   Q = U2 Wk                       B C C
    y    = x M^T + S bv + c                           c = U2 (b1 + bk) + b2           B N C

Matrices are as `nn.Linear` keeps them, (out, in). Two kernels read the tokens: one computes their
means, and reads them once forward and once backward, the other multiplies them. The steps between
have no token axis and are left to torch. In the backward the product writes the tokens' gradient,
and the gradient through the means is added to it in place. Of the softmax only the log-sum-exp is
saved, so that in the backward a weight is as exact as its logit. Where logits are above `STEEP`,
the softmax is therefore computed again, by torch.
"""

from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import Summary, pointer, run
from saccade.ops.native.linear import add_gradients, add_gradients_each, times, times_each
from saccade.ops.operator import Kernel

# -- the means ------------------------------------------------------------------------------------


STEEP = 128  # logits from which on a softmax may have one share


def _means(x: Tensor, ask: Tensor, mean: Tensor, lse: Tensor) -> None:
    """Fill in the means, and the log-sum-exp of every head's logits."""
    run("saccade_summary_forward", _call(x, ask, mean=mean, lse=lse))


def _means_backward(dmean, x, ask, mean, lse, dx, add: bool) -> Tensor:
    """The gradient of ask; that of x is written to dx or, with `add`, added to it."""
    if bool((ask.norm(dim=1) * mean.norm(dim=2)).max() > STEEP):
        return _steep_means_backward(dmean, x, ask, dx if add else dx.zero_())
    dask, dmean = torch.empty_like(ask), dmean.contiguous()
    delta = (dmean * mean).sum(-1)
    call = _call(x, ask, lse=lse, dmean=dmean, delta=delta, dx=dx, dask=dask)
    call.add = add
    run("saccade_summary_backward", call)
    return dask


def _steep_means_backward(dmean, x, ask, dx) -> Tensor:
    """The same, for a softmax of which one share is nearly all.

    The gradient of a logit is its share times a difference that should vanish there. The kernel
    subtracts two sums over channels, which are rounded differently; here it vanishes exactly.
    """
    p, dp = torch.softmax(ask @ x.mT, 2), dmean @ x.mT  # B h N
    ds = p * (dp - (p * dp).sum(2, keepdim=True))
    dx.baddbmm_(p.mT, dmean).baddbmm_(ds.mT, ask.expand(len(x), -1, -1))
    return (ds @ x).sum(0)


def _call(x: Tensor, ask: Tensor, **rest: Tensor) -> Any:
    call = Summary(torch.get_num_threads(), *x.shape, len(ask), 0, pointer(x), pointer(ask))
    for name, tensor in rest.items():
        setattr(call, name, pointer(tensor))
    return call


# -- the layer ------------------------------------------------------------------------------------


def _keeps(out, x, wk, bk, wv, bv, ws, *rest) -> tuple[Tensor, ...]:
    """Room for M, P, g, the means, and the log-sum-exp of their logits."""
    (B, _, C), h = x.shape, len(ws)
    return tuple(x.new_empty(shape) for shape in ((B, C, C), (C, C), (B, C), (B, h, C), (B, h)))


def _forward(out, residuals, x, wk, bk, wv, bv, ws, u1, b1, u2, b2) -> None:
    (B, _, C), h = x.shape, len(ws)
    m, p, g, mean, lse = residuals or _keeps(out, x, wk, bk, wv, bv, ws)
    _means(x, _ask(ws, wk), mean, lse)
    by_head = torch.baddbmm(bk.view(h, 1, -1), mean.transpose(0, 1), wk.view(h, -1, C).mT)
    g.view(B, h, -1).copy_(by_head.transpose(0, 1))
    torch.mm(u2, u1, out=p)
    s = p * g[:, None]
    times(s.view(-1, C), wv.mT, None, m.view(-1, C))
    m += u2 @ wk
    bias = torch.addmm(torch.addmv(b2, u2, b1 + bk), g * bv, p.mT)
    times_each(x, m, bias, out)


def _scale(ws: Tensor) -> float:
    return (ws.shape[1] // len(ws)) ** -0.5


def _ask(ws: Tensor, wk: Tensor) -> Tensor:
    return torch.addmm(ws, ws, wk, beta=0, alpha=_scale(ws))


def _backward(grad, residuals, needs, x, wk, bk, wv, bv, ws, u1, b1, u2, b2):
    """Line by line, from the last of the equations to the first."""
    (B, _, C), h = x.shape, len(ws)
    m, p, g, mean, lse = residuals
    dx = torch.empty_like(x)  # before the small tensors: so it gets the memory of a freed map
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
    dask = _means_backward(dmean, x, _ask(ws, wk), mean, lse, dx, add=True)
    dask *= _scale(ws)
    # ask, P, Q, c
    dws = dask @ wk.mT
    dwk.addmm_(ws.mT, dask).addmm_(u2.mT, dq)
    du1, db1 = u2.mT @ dp, u2.mT @ dc
    du2 = (dp @ u1.mT).addmm_(dq, wk.mT).addr_(dc, b1 + bk)
    return dx, dwk, dg.sum(0).add_(db1), dwv, dbv, dws, du1, db1, du2, dc


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=lambda *inputs: True,
    about="float32",
    computes="collapsed",
    ready=native.available,
    keeps=_keeps,
)
