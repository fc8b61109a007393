"""Learned-query attention (QnA, supplement 4 and 6): aggregate windows by content, queries shared.

A window is the k x k places around w; an offset o is one of them. The scores s are known per pixel,
because the queries are the same in every window:

    P_l(w, o) = exp(s_l(w + o) + r_l(o)) / sum over o' of exp(s_l(w + o') + r_l(o'))
    z(w)      = sum over o of c(w, o) v(w + o),     c(w, o) = sum over l of P_l(w, o) Ws_l(o)

l counts the L queries, and all of it holds per head. Places outside the map take no part.

Forms of `aggregate`: `unrolled` is the equations in plain PyTorch, attention maps and all: the
reference, and what a portable graph holds. `walked` (saccade.ops.plain) holds one offset at a time.
`native` and `triton` are the kernels for CPU and GPU. `convolved` is how the authors compute it, by
depth-wise convolutions of exp(s): right only while exp(s) neither overflows nor underflows.

`attend` is the whole layer, projections included: one operator where the C++ kernels take it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.qna import ATTEND_NATIVE, NATIVE
from saccade.ops.operator import Operator
from saccade.ops.plain.qna import WALKED
from saccade.ops.precision import no_autocast, wide
from saccade.ops.triton.qna import TRITON


def aggregate(
    s: Float[Tensor, "B H W L h"], v: Float[Tensor, "B H W h d"], rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None, stride: int, padding: int, fold: bool = True,
    backend: str = "auto",
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:  # fmt: skip
    """z of every window, sums in at least fp32; with `fold=False` one z per query, not summed."""
    return AGGREGATE(s, v, rpe, ws, stride, padding, fold, backend=backend)


def gather(
    x: Float[Tensor, "B H W C"], weight: Float[Tensor, "J C"], bias: Float[Tensor, "J"] | None,
    rpe: Float[Tensor, "k k L h"], ws: Float[Tensor, "k k L h"] | None, stride: int, padding: int,
    fold: bool = True, backend: str = "auto",
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:  # fmt: skip
    """`aggregate` of the projection x W^T + b: J channels, first the values, then the scores.

    The projection is one product where the kernel reads both from one map, else two.
    """
    L, h = rpe.shape[2:]
    widths = len(weight) - L * h, L * h
    if x.device.type == "cpu":  # its kernels read both from one map
        v, s = F.linear(x, weight, bias).split(widths, -1)
    else:
        biases = (None, None) if bias is None else bias.split(widths)
        v, s = (F.linear(x, w, b) for w, b in zip(weight.split(widths), biases, strict=True))
    s, v = s.unflatten(-1, (L, h)), v.unflatten(-1, (h, widths[0] // h))
    return aggregate(s, v, rpe, ws, stride, padding, fold, backend)


def attend(
    x: Float[Tensor, "B H W C"], weight: Float[Tensor, "J C"], bias: Float[Tensor, "J"] | None,
    rpe: Float[Tensor, "k k L h"], ws: Float[Tensor, "k k L h"] | None, mix: Float[Tensor, "D V"],
    mix_bias: Float[Tensor, "D"] | None, stride: int, padding: int, backend: str = "auto",
) -> Float[Tensor, "B Ho Wo D"]:  # fmt: skip
    """The layer by its letters: `gather`, then Wo."""
    return ATTEND(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding, backend=backend)


fx.wrap("aggregate")  # one node each to torch.fx
fx.wrap("gather")
fx.wrap("attend")


def unrolled(
    s: Float[Tensor, "B H W L h"], v: Float[Tensor, "B H W h d"], rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None, stride: int, padding: int, fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:  # fmt: skip
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
    s: Float[Tensor, "B H W L h"], v: Float[Tensor, "B H W h d"], rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None, stride: int, padding: int, fold: bool = True,
) -> Float[Tensor, "B Ho Wo h d"] | Float[Tensor, "B Ho Wo L h d"]:  # fmt: skip
    """z = Sum_k(e^s v) / Sum_k(e^s), as printed: in fp32 for scores within about +-80 only.

    For reading, for counting multiplications and for comparison; holds L copies of V.
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
    """For each offset, row by row, the pixels of all windows; outside the map, `border`."""
    H, W = ((count(n, k, stride, padding) - 1) * stride + 1 for n in x.shape[1:3])
    x = F.pad(x, (0, 0) * (x.dim() - 3) + (padding,) * 4, value=border)
    rows = [x[:, a : a + H : stride] for a in range(k)]
    return [row[:, :, b : b + W : stride] for row in rows for b in range(k)]


# -- the operators --------------------------------------------------------------------------------


def _check(s, v, rpe, ws, stride, padding, *_) -> None:
    """Windows: `s` of aggregate, or x of attend."""
    size, k = s.shape[1:3], rpe.shape[0]
    if stride < 1 or not 0 <= padding < k:
        raise ValueError(
            f"aggregate: 1 <= stride and 0 <= padding < k, got {stride=} {padding=} {k=}"
        )
    if torch.compiler.is_compiling():  # there, sizes may be symbols
        return
    if min(count(n, k, stride, padding) for n in size) < 1:
        raise ValueError(
            f"aggregate: no window fits, got {tuple(size)} pixels {k=} {padding=}; try padding=k//2"
        )


def _output(s, v, rpe, ws, stride, padding, fold) -> Tensor:
    B, H, W, L, h = s.shape
    grid = [count(n, rpe.shape[0], stride, padding) for n in (H, W)]
    return v.new_empty(B, *grid, *(() if fold else (L,)), h, v.shape[-1])


def _flops(s, v, rpe, ws, stride, padding, fold) -> int:
    """As printed: in every window, per query and place, one multiplication and addition of each
    value, and of the sum that they are divided by.
    """
    (B, H, W, L, h), d, k = s, v[-1], rpe[0]
    windows = count(H, k, stride, padding) * count(W, k, stride, padding)
    return 2 * B * windows * k * k * L * h * (d + 1)


AGGREGATE = Operator(
    "aggregate",
    plain={"unrolled": unrolled, "convolved": convolved},
    kernels={"native": NATIVE, "triton": TRITON, "walked": WALKED},
    check=_check,
    output=_output,
    flops=_flops,
    keeps=2,
    tables=("rpe", "ws"),
    mixed=True,
    autocast=True,
)


def _composed(
    x: Float[Tensor, "B H W C"], weight: Float[Tensor, "J C"], bias: Float[Tensor, "J"] | None,
    rpe: Float[Tensor, "k k L h"], ws: Float[Tensor, "k k L h"] | None, mix: Float[Tensor, "D V"],
    mix_bias: Float[Tensor, "D"] | None, stride: int, padding: int,
) -> Float[Tensor, "B Ho Wo D"]:  # fmt: skip
    """Product, aggregation, product."""
    z = gather(x, weight, bias, rpe, ws, stride, padding)
    return F.linear(z.flatten(3), mix, mix_bias)


def _check_attend(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding) -> None:
    (_, _, L, h), J, V = rpe.shape, len(weight), mix.shape[1]
    if V < 1 or V % h or J != V + L * h:
        raise ValueError(f"attend: J = V + L h and h divides V, got {J=} {V=} {L=} {h=}")
    _check(x, None, rpe, ws, stride, padding)


def _attend_output(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding) -> Tensor:
    B, H, W, _ = x.shape
    grid = [count(n, rpe.shape[0], stride, padding) for n in (H, W)]
    return x.new_empty(B, *grid, len(mix))


def _attend_flops(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding) -> int:
    (B, H, W, C), (J, _), (D, V) = x, weight, mix
    Ho, Wo = (count(n, rpe[0], stride, padding) for n in (H, W))
    (_, _, L, h), products = rpe, 2 * B * (H * W * C * J + Ho * Wo * D * V)
    return products + _flops((B, H, W, L, h), (V // h,), rpe, ws, stride, padding, True)


ATTEND = Operator(
    "attend",
    plain={"composed": _composed},
    kernels={"native": ATTEND_NATIVE},
    check=_check_attend,
    output=_attend_output,
    flops=_attend_flops,
    keeps=2,
    tables=("rpe", "ws"),
)
