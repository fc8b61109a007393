"""QnA on CPU by the fused kernels: the aggregation, and the whole layer around it.

    p(l, ab) = softmax over the window of s(l, ab) + rpe(l, ab)
    z        = sum over ab of  (sum over l of p(l, ab) ws(l, ab))  v(ab)

The queries are folded into one weight per offset before a value is read. Neither scores nor values
are copied per offset or per query; both may lie side by side in one map. Only the inputs are saved
for the backward.

    (v, s) = x W + b        z = aggregate(s, v)        y = z Wo + bo

The layer is computed for a few images at a time, so that each step finds the result of the one
before in the cache. Without gradients, the maps between its products are held for those few images
only; in the backward, so are the gradients of z, v and s.
"""

from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import LIMITS, TYPES, Map, Qna, pointer, run
from saccade.ops.native.linear import Product
from saccade.ops.operator import Kernel

WIDEST = LIMITS["qna_window"]
ENOUGH = 2**21  # bytes of values and scores, for each thread, of the images of one turn


# -- the aggregation ------------------------------------------------------------------------------


def _forward(out, residuals, s, v, rpe, ws, stride, padding, fold) -> None:
    s, v = _merged(s), _merged(v)
    call = _call(s, v, out, rpe, ws, stride, padding, fold)
    call.out = _map(out)
    run("saccade_qna_forward", call)


def _backward(grad, residuals, needs, s, v, rpe, ws, stride, padding, fold):
    ds, dv, drpe = (t.new_empty(t.shape) for t in (s, v, rpe))
    dws = None if ws is None else torch.empty_like(ws)
    s, v, grad = map(_merged, (s, v, grad))
    call = _call(s, v, grad, rpe, ws, stride, padding, fold)
    call.gout, call.ds, call.dv = map(_map, (grad, ds, dv))
    call.dbias, call.dweight = pointer(drpe), pointer(dws)
    run("saccade_qna_backward", call)
    return ds, dv, drpe, dws


def _merged(t: Tensor) -> Tensor:
    """The axes after the grid merged into one; a view, because they are contiguous here."""
    return t.flatten(3)


def _map(t: Tensor) -> Map:
    return Map.of(t.flatten(3).permute(0, 3, 1, 2))


def _call(s, v, out, rpe, ws, stride, padding, fold) -> Any:
    """The structure for C++; `s` and `v` with their last axes merged must outlive it."""
    (B, H, W, _), (k, _, L, h) = s.shape, rpe.shape
    return Qna(
        TYPES[v.dtype], torch.get_num_threads(), B, h, v.shape[3] // h, L, H, W, *out.shape[1:3],
        k, stride, padding, fold, _map(s), _map(v), pointer(rpe), pointer(ws),
    )  # fmt: skip


def _takes(s, v, rpe, ws, stride, padding, fold) -> bool:
    return len(rpe) <= WIDEST and (fold or ws is None)


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"windows up to {WIDEST}, no ws without fold, {list(TYPES)}",
    ready=native.available,
    dtypes=tuple(TYPES),
    strided=("s", "v", "grad"),
)


# -- the layer ------------------------------------------------------------------------------------


def _keeps(out, x, weight, bias, rpe, ws, mix, mix_bias, stride, padding) -> tuple[Tensor, Tensor]:
    """Room for values and scores, and for z."""
    return x.new_empty(*x.shape[:3], len(weight)), x.new_empty(*out.shape[:3], mix.shape[1])


def _layer_forward(
    out, residuals, x, weight, bias, rpe, ws, mix, mix_bias, stride, padding
) -> None:
    n, keep = _images(x, weight), bool(residuals)
    inputs = x[:n], weight, bias, rpe, ws, mix, mix_bias, stride, padding
    vs, z = residuals or _keeps(out[:n], *inputs)
    project = Product(_pixels(x), _pixels(vs), weight, bias, (True, keep))
    moving = ("s", "v", "out") if keep else ()
    aggregate = InTurns("saccade_qna_forward", vs, z, rpe, ws, stride, padding, moving, z=z)
    blend = Product(_pixels(z), _pixels(out), mix, mix_bias, (keep, True))
    before, after = x.shape[1] * x.shape[2], out.shape[1] * out.shape[2]
    for start in range(0, len(x), n):
        images = min(n, len(x) - start)
        project(start * before, images * before)
        aggregate(start, images)
        blend(start * after, images * after)


def _layer_backward(
    grad, residuals, needs, x, weight, bias, rpe, ws, mix, mix_bias, stride, padding
):
    vs, z = residuals
    dx = torch.empty_like(x)
    dweight, drpe, dmix = (torch.zeros_like(t) for t in (weight, rpe, mix))
    dbias, dws, dmix_bias = (
        None if t is None else torch.zeros_like(t) for t in (bias, ws, mix_bias)
    )  # fmt: skip
    of_rpe, of_ws = torch.empty_like(rpe), None if ws is None else torch.empty_like(ws)
    n = _images(x, weight)
    dvs = vs.new_empty(n, *vs.shape[1:])
    shared = z.shape == x.shape  # dz may use the memory of dx: it is read before dx is written
    dz = dx if shared else z.new_empty(n, *z.shape[1:])
    moving = ("s", "v", "out", "gout") if shared else ("s", "v", "out")
    aggregate = InTurns(
        "saccade_qna_backward", vs, z, rpe, ws, stride, padding, moving,
        z=z, dz=dz, dvs=dvs, sums=(of_rpe, of_ws),
    )  # fmt: skip
    xs, gs, zs, dzs, dvss = map(_pixels, (x, grad, z, dz, dvs))
    blend = Product(gs, dzs, mix.mT, None, (True, shared))
    project = Product(dvss, _pixels(dx), weight.mT, None, (False, True))
    sums_in = Product(xs, dvss, dweight, dbias, (True, False), gradients=True)
    sums_out = Product(zs, gs, dmix, dmix_bias, gradients=True)
    before, after = x.shape[1] * x.shape[2], z.shape[1] * z.shape[2]
    for start in range(0, len(x), n):
        images = min(n, len(x) - start)
        at, pixels = start * before, images * before
        at_out, pixels_out = start * after, images * after
        blend(at_out, pixels_out)
        aggregate(start, images)
        project(at, pixels)
        sums_in(at, pixels)
        sums_out(at_out, pixels_out)
        drpe += of_rpe
        if dws is not None and of_ws is not None:
            dws += of_ws
    return dx, dweight, dbias, drpe, dws, dmix, dmix_bias


def _images(x: Tensor, weight: Tensor) -> int:
    """How many images a turn takes."""
    bytes_each = 4 * x.shape[1] * x.shape[2] * len(weight)
    return min(len(x), max(1, torch.get_num_threads() * ENOUGH // bytes_each))


def _pixels(t: Tensor) -> Tensor:
    return t.view(-1, t.shape[-1])


class InTurns:
    """A kernel called for a few images at a time; from one turn to the next only pointers change.

    All maps lie B H W C in memory. `sums` are summed over images. Maps named in `moving` hold all
    images, the others those of one turn.
    """

    def __init__(
        self, name, vs, like, rpe, ws, stride, padding, moving, *,
        z=None, dz=None, dvs=None, sums=(),
    ):  # fmt: skip
        k, _, L, h = rpe.shape
        _, H, W, J = vs.shape
        V = J - L * h
        self.name, self.alive = name, (vs, rpe, ws, z, dz, dvs, sums)
        self.call = Qna(
            TYPES[vs.dtype], torch.get_num_threads(), 0, h, V // h, L, H, W, *like.shape[1:3],
            k, stride, padding, True, _whole(vs, V), _whole(vs), pointer(rpe), pointer(ws),
            _whole(z), _whole(dz), _whole(dvs, V), _whole(dvs), *map(pointer, sums),
        )  # fmt: skip
        fields = [getattr(self.call, field) for field in moving]
        self.moving = [(field, field.data, field.batch * vs.element_size()) for field in fields]

    def __call__(self, start: int, images: int) -> None:
        self.call.B = images
        for field, data, step in self.moving:
            field.data = data + start * step
        run(self.name, self.call)


def _whole(t: Tensor | None, first: int = 0) -> Map:
    """A map that lies B H W C in memory, from channel `first` on."""
    if t is None:
        return Map()
    _, H, W, C = t.shape
    return Map(t.data_ptr() + first * t.element_size(), H * W * C, 1, W * C, C)


ATTEND_NATIVE = Kernel(
    forward=_layer_forward,
    backward=_layer_backward,
    takes=lambda x, weight, bias, rpe, *rest: len(rpe) <= WIDEST,
    about=f"windows up to {WIDEST}, in float32, in which its sums stay exact enough",
    ready=native.available,
    keeps=_keeps,
)
