"""Learned-query attention (QnA, supplement 4 and 6): aggregate windows by content, queries shared.

A window is the k x k places around w; an offset o is one of them. The scores s are known per pixel,
because the queries are the same in every window:

    P_l(w, o) = exp(s_l(w + o) + r_l(o)) / sum over o' of exp(s_l(w + o') + r_l(o'))
    z(w)      = sum over o of c(w, o) v(w + o),     c(w, o) = sum over l of P_l(w, o) Ws_l(o)

l counts the L queries, and all of it holds per head. Places outside the map take no part.

`aggregate` takes the fastest form of one function: the kernels of `saccade.ops.native` on CPU, of
`saccade.ops.triton` on GPU, where they can be had, or one of these:

`walked`     walks over the offsets and holds one at a time: no windows and no attention maps exist,
             forward or backward, so memory does not grow with k. The softmax is exact, for the
             maximum of each window is subtracted. The queries are folded into one coefficient per
             head before V is touched, so V's work does not grow with L.
`unrolled`   the equations in plain PyTorch, attention maps and all: the reference, and what an
             exported graph holds.
`convolved`  as the authors compute it: sums over windows as depth-wise convolutions of exp(s).
             Right only while exp(s) neither overflows nor dies.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from saccade.ops import native, triton
from saccade.ops.native.qna import aggregate as fused
from saccade.ops.native.qna import aggregate_joined as fused_joined
from saccade.ops.native.qna import supports
from saccade.ops.native.qna_layer import attend as attend
from saccade.ops.native.qna_layer import takes
from saccade.ops.precision import no_autocast, wide
from saccade.ops.second import transformed

FORMS = ("exact", "convolved")


def aggregate(
    s: Float[Tensor, "B H W L h"],
    v: Float[Tensor, "B H W h d"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:
    """z of every window, sums in at least fp32; with `fold=False` one z per query, not summed.

    By the C++ kernel (on a GPU by Triton's) where there is one that takes such a call, else by
    `walked`; torch.func's transforms go there, and float64, asking for exactness.
    """
    form = _best(s, v, rpe, ws, fold)
    if form == "triton":
        from saccade.ops.triton.qna import aggregate as on_gpu

        return on_gpu(s, v, rpe, ws, stride, padding, fold)
    forms = {"unrolled": unrolled, "walked": walked, "native": fused}
    return forms[form](s, v, rpe, ws, stride, padding, fold)


def aggregate_joined(
    vs: Float[Tensor, "B H W J"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:
    """The same of values and scores side by side in one map (the values first): see `joins`."""
    return fused_joined(vs, rpe, ws, stride, padding, fold)


def joins(x: Float[Tensor, "B H W C"], rpe: Float[Tensor, "k k L h"]) -> bool:
    """Whether `aggregate_joined` takes what is projected from x: one product, then the kernel."""
    return _best(x, x, rpe, None, True) == "native"


def attends(x: Float[Tensor, "B H W C"], weight: Tensor, rpe: Tensor) -> bool:
    """Whether `attend`, the layer with its projections in one operator, takes such a call."""
    return takes(x, weight, rpe.shape[0]) and joins(x, rpe)


def _best(s: Tensor, v: Tensor, rpe: Tensor, ws: Tensor | None, fold: bool) -> str:
    """The fastest form that this call, this machine and this compiler can take."""
    if torch.compiler.is_exporting():
        return "unrolled"
    if transformed() or v.dtype == torch.float64 or (ws is not None and not fold):
        return "walked"
    if v.is_cuda and triton.available():
        from saccade.ops.triton.qna import supports as on_gpu

        return "triton" if on_gpu(v) else "walked"
    if s.dtype == v.dtype and supports(v, rpe.shape[0]) and native.available():
        return "native"
    return "walked"


def walked(
    s: Float[Tensor, "B H W L h"],
    v: Float[Tensor, "B H W h d"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:
    """The same in plain PyTorch, offset by offset."""
    dtype = wide(torch.promote_types(s.dtype, v.dtype))
    ws = torch.ones_like(rpe) if ws is None else ws
    with no_autocast(v.device):
        tables = rpe.to(dtype), ws.to(dtype)
        z, _, _ = _Aggregate.apply(s.to(dtype), v, *tables, stride, padding, fold)
    return z.squeeze(3) if fold else z


def unrolled(
    s: Float[Tensor, "B H W L h"],
    v: Float[Tensor, "B H W h d"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:
    """The same, equation by equation; holds P of every window."""
    k = rpe.shape[0]
    dtype = wide(torch.promote_types(s.dtype, v.dtype))
    with no_autocast(v.device):
        c = weights(s.to(dtype), rpe, stride, padding).flatten(5)  # B Ho Wo L h k^2
        c = c if ws is None else c * ws.to(dtype).flatten(0, 1).permute(1, 2, 0)
        c, v_all = (c.sum(3), v) if fold else (c, v.unsqueeze(3))
        views = _views(v_all, k, stride, padding, 0.0)
        z = sum(c[..., i, None] * v_o for i, v_o in enumerate(views))
        return torch.as_tensor(z).to(v.dtype)


def weights(
    s: Float[Tensor, "B H W L h"], rpe: Float[Tensor, "k k L h"], stride: int, padding: int
) -> Float[Tensor, "B Ho Wo L h k k"]:
    """P of every window: how much each query takes from each place of it."""
    k = rpe.shape[0]
    dtype = wide(s.dtype)
    places = torch.stack(_views(s.to(dtype), k, stride, padding, -torch.inf), -1)
    places = places - places.detach().amax(-1, keepdim=True)  # before r is added: exact there
    p = torch.softmax(places + rpe.to(dtype).flatten(0, 1).permute(1, 2, 0), -1)
    return p.unflatten(-1, (k, k))


def convolved(
    s: Float[Tensor, "B H W L h"],
    v: Float[Tensor, "B H W h d"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:
    """z = Sum_k(e^s v) / Sum_k(e^s), as printed: in fp32 for scores within about +-80 only.

    Kept to read, to count multiplications by, and to compare with; holds L copies of V.
    """
    L, h, d = *s.shape[3:], v.shape[-1]
    dtype = wide(torch.promote_types(s.dtype, v.dtype))

    def window_sum(x: Tensor, kernel: Tensor) -> Tensor:
        groups = x.shape[-1]
        kernel = kernel.permute(2, 0, 1)[:, None]  # k k G -> G 1 k k
        y = F.conv2d(x.permute(0, 3, 1, 2), kernel, None, stride, padding, groups=groups)
        return y.permute(0, 2, 3, 1)

    with no_autocast(v.device):
        e, r = s.to(dtype).exp(), rpe.to(dtype).exp()
        scaled = r if ws is None else r * ws.to(dtype)
        ev = e[..., None] * v[:, :, :, None]  # B H W L h d
        num = window_sum(ev.flatten(3), scaled.flatten(2).repeat_interleave(d, 2))
        den = window_sum(e.flatten(3), r.flatten(2))
        z = num.unflatten(3, (L, h, d)) / den.unflatten(3, (L, h, 1))
        return (z.sum(3) if fold else z).to(v.dtype)


def count(size: int, window: int, stride: int, padding: int) -> int:
    """How many windows stand along a side of the map."""
    return (size + 2 * padding - window) // stride + 1


def _views(x: Tensor, k: int, stride: int, padding: int, border: float) -> list[Tensor]:
    """What all windows see at each offset, row by row; outside the map they see `border`."""
    H, W = ((count(n, k, stride, padding) - 1) * stride + 1 for n in x.shape[1:3])
    x = F.pad(x, (0, 0) * (x.dim() - 3) + (padding,) * 4, value=border)
    rows = [x[:, a : a + H : stride] for a in range(k)]
    return [row[:, :, b : b + W : stride] for row in rows for b in range(k)]


# -- the walk -------------------------------------------------------------------------------------
#
# As an operator of its own it is one node to every tracer, whatever k. Inside it V and z carry an
# axis for the queries, of length 1 where they share it. What runs at every offset goes without type
# checks even in tests: it runs too often.


@no_type_check
class _Step(NamedTuple):
    """One offset: the windows that have it inside the map, and the pixels they see there."""

    offset: tuple[int, int]
    windows: tuple[slice, ...]
    pixels: tuple[slice, ...]


@no_type_check
def _walk(H: int, W: int, k: int, stride: int, padding: int) -> Iterator[_Step]:
    for offset in product(range(k), range(k)):
        windows, pixels = [slice(None)], [slice(None)]
        for size, o in zip((H, W), offset, strict=True):
            first = max(0, -((o - padding) // stride))  # window i sees pixel i stride + o - padding
            last = min(count(size, k, stride, padding), (size - 1 + padding - o) // stride + 1) - 1
            windows.append(slice(first, last + 1))
            start = first * stride + o - padding
            pixels.append(slice(start, start + (last - first) * stride + 1, stride))
        if all(w.start is None or w.start < w.stop for w in windows):
            yield _Step(offset, tuple(windows), tuple(pixels))


@no_type_check
def _along(table: Tensor, step: _Step) -> Tensor:
    """A table's entry for every window of a row: so that adding it runs along memory."""
    columns = step.windows[2].stop - step.windows[2].start
    return table[step.offset].expand(columns, -1, -1).contiguous()


@no_type_check
def _exp(s: Tensor, m: Tensor, rpe: Tensor, step: _Step) -> Tensor:
    """exp(s + r - m). s - m comes first: near the maximum, where it matters, that is exact."""
    return (s[step.pixels] - m[step.windows]).add_(_along(rpe, step)).exp_()


@no_type_check
def _fold(c: Tensor) -> Tensor:
    """The sum over the queries, which stay as an axis of one. (Tensor.sum is slow for a few.)"""
    return reduce(torch.add, c.split(1, 3))


@torch.library.custom_op("saccade::qna", mutates_args=())
def _aggregate(
    s: Tensor, v: Tensor, rpe: Tensor, ws: Tensor, stride: int, padding: int, fold: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """z (with its axis of queries), the maximum m of each window, and 1 / sum of exp(s + r - m)."""
    z, m, total = _empty_like_output(s, v, rpe, ws, stride, padding, fold)
    steps = list(_walk(*s.shape[1:3], rpe.shape[0], stride, padding))
    m.fill_(-torch.inf)
    for step in steps:
        m_o = m[step.windows]
        torch.maximum(m_o, s[step.pixels] + _along(rpe, step), out=m_o)
    total.zero_()
    for step in steps:
        total[step.windows].add_(_exp(s, m, rpe, step))
    inverse = total.reciprocal_()
    z = z.to(s.dtype).zero_()
    for step in steps:
        c = _exp(s, m, rpe, step).mul_(inverse[step.windows]).mul_(_along(ws, step))
        v_o = v[step.pixels].unsqueeze(3).to(s.dtype)
        z[step.windows].addcmul_((_fold(c) if fold else c)[..., None], v_o)
    return z.to(v.dtype), m, inverse


@_aggregate.register_fake
def _empty_like_output(
    s: Tensor, v: Tensor, rpe: Tensor, ws: Tensor, stride: int, padding: int, fold: bool
) -> tuple[Tensor, Tensor, Tensor]:
    B, H, W, L, h = s.shape
    grid = [count(n, rpe.shape[0], stride, padding) for n in (H, W)]
    z = v.new_empty(B, *grid, 1 if fold else L, h, v.shape[-1])
    return z, s.new_empty(B, *grid, L, h), s.new_empty(B, *grid, L, h)


@torch.library.custom_op("saccade::qna_backward", mutates_args=())
def _gradients(
    g: Tensor, s: Tensor, v: Tensor, rpe: Tensor, ws: Tensor, m: Tensor, inverse: Tensor,
    stride: int, padding: int, fold: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """With t = g . v(w + o):  dV = c g,  dWs = P t,  ds = dr = P (Ws t - D), D = sum of P Ws t.

    The first walk reads V; the second, once D is known, works on the small maps alone.
    """
    steps = list(_walk(*s.shape[1:3], rpe.shape[0], stride, padding))
    ds, drpe, dws, D = (torch.zeros_like(x) for x in (s, rpe, ws, m))
    dv = torch.zeros_like(v, dtype=s.dtype)
    for step in steps:
        p = _exp(s, m, rpe, step).mul_(inverse[step.windows])
        c = p * _along(ws, step)
        g_o = g[step.windows].to(s.dtype)
        t = (g_o * v[step.pixels].unsqueeze(3)).sum(-1)  # B Ho Wo, 1 or L, h
        if fold:
            dv[step.pixels].addcmul_(_fold(c).squeeze(3)[..., None], g_o.squeeze(3))
        else:
            dv[step.pixels].add_((c[..., None] * g_o).sum(3))
        dws[step.offset] = p.mul_(t).sum((0, 1, 2))
        D[step.windows].add_(c.mul_(t))
        ds[step.pixels].add_(c)
        drpe[step.offset] = c.sum((0, 1, 2))
    D.mul_(inverse)
    for step in steps:
        pd = _exp(s, m, rpe, step).mul_(D[step.windows])
        ds[step.pixels].sub_(pd)
        drpe[step.offset] -= pd.sum((0, 1, 2))
    return ds, dv.to(v.dtype), drpe, dws


@_gradients.register_fake
def _empty_like_input(
    g: Tensor, s: Tensor, v: Tensor, rpe: Tensor, ws: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s, v, rpe, ws = (torch.empty_like(x) for x in (s, v, rpe, ws))
    return s, v, rpe, ws


def _one_by_one(op: Callable[..., tuple[Tensor, ...]]) -> Callable:
    """torch.vmap of an operator, sample by sample."""

    def rule(info: Any, axes: tuple[int | None, ...], *args: Any) -> tuple[tuple, tuple]:
        def sample(i: int) -> tuple[Tensor, ...]:
            pairs = zip(args, axes, strict=True)
            return op(*(x if axis is None else x.select(axis, i) for x, axis in pairs))

        stacked = [torch.stack(x) for x in zip(*map(sample, range(info.batch_size)), strict=True)]
        return tuple(stacked), (0,) * len(stacked)

    return rule


_aggregate.register_vmap(_one_by_one(_aggregate))
_gradients.register_vmap(_one_by_one(_gradients))


@no_type_check  # tracers look into these two, and cannot see through a checking wrapper
class _Aggregate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _aggregate(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *tensors, ctx.stride, ctx.padding, ctx.fold = inputs
        _, m, inverse = output
        ctx.save_for_backward(*tensors, m, inverse)
        ctx.mark_non_differentiable(m, inverse)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        g, _, _ = grad_outputs
        grads = _Gradients.apply(g, *ctx.saved_tensors, ctx.stride, ctx.padding, ctx.fold)
        return *grads, None, None, None


@no_type_check
class _Gradients(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _gradients(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        g, s, v, rpe, ws, _, _, *ctx.how = inputs
        ctx.save_for_backward(g, s, v, rpe, ws)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Second derivatives are rare: let autograd take them from the plain form."""
        stride, padding, fold = ctx.how

        def z(*inputs: Tensor) -> Tensor:
            y = unrolled(*inputs, stride, padding, fold)
            return y.unsqueeze(3) if fold else y

        def gradients(g: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
            return torch.func.vjp(z, *inputs)[1](g)

        pull = torch.func.vjp(gradients, *ctx.saved_tensors)[1]
        return *pull(grad_outputs), None, None, None, None, None


@register_flop_formula(torch.ops.saccade.qna)
def _flops(s: Any, v: Any, rpe: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    """Per offset one multiplication and addition of each value, and of each query's weight."""
    B, Ho, Wo, times, h, d = out_shape[0]  # each value is used once, or by each query
    k, _, L, _ = rpe
    return 2 * B * Ho * Wo * k * k * h * (times * d + L)
