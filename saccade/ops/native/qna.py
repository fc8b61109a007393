"""QnA's aggregation on CPU as a torch operator over the fused kernel.

    p(l, ab) = softmax over the window of s(l, ab) + rpe(l, ab)
    y        = sum over ab of  (sum over l of p(l, ab) ws(l, ab))  v(ab)

`aggregate` has the signature of the plain form in `saccade.ops.qna`. The queries are folded into
one weight per offset before a value is read; neither scores nor values are ever copied per offset
or per query. Nothing is kept for the backward but the inputs.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import TYPES, Map, Qna, pointer, run, table
from saccade.ops.second import second

WIDEST = 15  # window


def aggregate(
    s: Float[Tensor, "B H W L h"],
    v: Float[Tensor, "B H W h d"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo *queries h d"]:
    """What the learned queries gather from every window, by the fused kernel.

    The queries are summed, or with `fold` off kept apart (B Ho Wo L h d, and then without `ws`).
    """
    return torch.ops.saccade.aggregate(s, v, rpe, ws, stride, padding, fold)


def aggregate_joined(
    vs: Float[Tensor, "B H W J"],
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    stride: int,
    padding: int,
    fold: bool = True,
) -> Float[Tensor, "B Ho Wo *queries h d"]:
    """The same of values and scores side by side in one map, the values first.

    Whoever projects both from one input needs one product instead of two, and backward too: their
    gradients come as one map.
    """
    return torch.ops.saccade.aggregate_joined(vs, rpe, ws, stride, padding, fold)


def supports(v: Tensor, window: int) -> bool:
    """Whether the kernel takes such a call (where it can be called at all)."""
    return v.dtype in TYPES and v.device.type == "cpu" and v.numel() > 0 and window <= WIDEST


@torch.library.custom_op("saccade::aggregate", mutates_args=(), device_types="cpu")
def _forward(
    s: Tensor,
    v: Tensor,
    rpe: Tensor,
    ws: Tensor | None,
    stride: int,
    padding: int,
    fold: bool,
) -> Tensor:
    return _run_forward(s, v, rpe, ws, stride, padding, fold)


def _run_forward(s, v, rpe, ws, stride, padding, fold) -> Tensor:
    out = _output(s, v, rpe, ws, stride, padding, fold)
    call, _kept = _call(s, v, rpe, ws, stride, padding, fold)
    call.out = _map(out)
    run("saccade_qna_forward", call)
    return out


@_forward.register_fake
def _(s, v, rpe, ws, stride, padding, fold):
    return _output(s, v, rpe, ws, stride, padding, fold)


@torch.library.custom_op("saccade::aggregate_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    s: Tensor,
    v: Tensor,
    rpe: Tensor,
    ws: Tensor | None,
    stride: int,
    padding: int,
    fold: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients = _like(s, v, rpe, ws)
    _run_backward(grad, s, v, rpe, ws, stride, padding, fold, gradients)
    return gradients


def _run_backward(grad, s, v, rpe, ws, stride, padding, fold, gradients) -> None:
    ds, dv, drpe, dws = gradients
    call, (_s, _v, bias, weight) = _call(s, v, rpe, ws, stride, padding, fold)
    grad = _merged(grad)
    call.gout, call.ds, call.dv = _map(grad), _map(ds), _map(dv)
    wide = [None if t is None else torch.empty_like(t) for t in (bias, weight)]
    call.dbias, call.dweight = map(pointer, wide)
    run("saccade_qna_backward", call)
    for small, sums in zip((drpe, dws), wide, strict=True):
        if sums is not None:
            small.copy_(sums)


@_backward.register_fake
def _(grad, s, v, rpe, ws, stride, padding, fold):
    return _like(s, v, rpe, ws)


def parted(vs: Tensor, rpe: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and values as views of the map that holds both."""
    L, h = rpe.shape[2:]
    if (vs.shape[-1] - L * h) % h:
        raise ValueError(f"aggregate_joined: heads must divide the values, got {vs.shape=} {h=}")
    v, s = vs.tensor_split((vs.shape[-1] - L * h,), -1)
    return s.unflatten(-1, (L, h)), v.unflatten(-1, (h, -1))


@torch.library.custom_op("saccade::aggregate_joined", mutates_args=(), device_types="cpu")
def _forward_joined(
    vs: Tensor, rpe: Tensor, ws: Tensor | None, stride: int, padding: int, fold: bool
) -> Tensor:
    return _run_forward(*parted(vs, rpe), rpe, ws, stride, padding, fold)


@_forward_joined.register_fake
def _(vs, rpe, ws, stride, padding, fold):
    return _output(*parted(vs, rpe), rpe, ws, stride, padding, fold)


@torch.library.custom_op("saccade::aggregate_joined_backward", mutates_args=(), device_types="cpu")
def _backward_joined(
    grad: Tensor,
    vs: Tensor,
    rpe: Tensor,
    ws: Tensor | None,
    stride: int,
    padding: int,
    fold: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dvs, drpe, dws = gradients = _like_joined(vs, rpe, ws)
    maps = parted(vs, rpe)
    _run_backward(grad, *maps, rpe, ws, stride, padding, fold, (*parted(dvs, rpe), drpe, dws))
    return gradients


@_backward_joined.register_fake
def _(grad, vs, rpe, ws, stride, padding, fold):
    return _like_joined(vs, rpe, ws)


def _like_joined(vs, rpe, ws) -> tuple[Tensor, Tensor, Tensor]:
    dws = vs.new_empty(0) if ws is None else ws.new_empty(ws.shape)
    return vs.new_empty(vs.shape), rpe.new_empty(rpe.shape), dws


def _like(s, v, rpe, ws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for the gradients, the maps channels last; an empty one for absent weights."""
    ds, dv, drpe = s.new_empty(s.shape), v.new_empty(v.shape), rpe.new_empty(rpe.shape)
    return ds, dv, drpe, s.new_empty(0) if ws is None else ws.new_empty(ws.shape)


def _keep(ctx, inputs, output):
    *tensors, ctx.stride, ctx.padding, ctx.fold = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad):
    s, v, rpe, ws = ctx.saved_tensors
    ds, dv, drpe, dws = torch.ops.saccade.aggregate_backward(
        grad, s, v, rpe, ws, ctx.stride, ctx.padding, ctx.fold
    )
    return ds, dv, drpe, None if ws is None else dws, None, None, None


def _differentiate_again(ctx, *weights):
    from saccade.ops.qna import unrolled

    def plain(*tensors):
        return unrolled(*tensors, ctx.stride, ctx.padding, ctx.fold)

    grad, *tensors = ctx.saved_tensors
    return *second(plain, grad, tensors, weights), None, None, None


def _differentiate_joined(ctx, grad):
    vs, rpe, ws = ctx.saved_tensors
    dvs, drpe, dws = torch.ops.saccade.aggregate_joined_backward(
        grad, vs, rpe, ws, ctx.stride, ctx.padding, ctx.fold
    )
    return dvs, drpe, None if ws is None else dws, None, None, None


def _differentiate_joined_again(ctx, *weights):
    from saccade.ops.qna import unrolled

    def plain(vs, rpe, ws=None):
        return unrolled(*parted(vs, rpe), rpe, ws, ctx.stride, ctx.padding, ctx.fold)

    grad, *tensors = ctx.saved_tensors
    return *second(plain, grad, tensors, weights), None, None, None


_forward_joined.register_autograd(_differentiate_joined, setup_context=_keep)
_backward_joined.register_autograd(_differentiate_joined_again, setup_context=_keep)
_forward_joined.register_autocast("cpu", torch.bfloat16)
_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep)
_forward.register_autocast("cpu", torch.bfloat16)


def _merged(t: Tensor) -> Tensor:
    """With the axes behind the grid as one; a view wherever those lie together, as they do."""
    return t.flatten(3)


def _map(t: Tensor) -> Map:
    return Map.of(t.flatten(3).permute(0, 3, 1, 2))


def _call(s, v, rpe, ws, stride, padding, fold):
    """The structure for C++, and the tensors that must outlive the call."""
    B, H, W, L, h = s.shape
    k, d = rpe.shape[0], v.shape[-1]
    Ho, Wo = outputs(H, W, k, stride, padding)
    kept = _merged(s), _merged(v), table(rpe, v.dtype), table(ws, v.dtype)
    call = Qna(
        TYPES[v.dtype], torch.get_num_threads(), B, h, d, L, H, W, Ho, Wo, k, stride, padding, fold,
        _map(kept[0]), _map(kept[1]), pointer(kept[2]), pointer(kept[3]),
    )  # fmt: skip
    return call, kept


def _whole(t: Tensor | None, first: int = 0) -> Map:
    """A map that lies B H W C, from channel `first` on."""
    if t is None:
        return Map()
    _, H, W, C = t.shape
    return Map(t.data_ptr() + first * t.element_size(), H * W * C, 1, W * C, C)


class InTurns:
    """A kernel over a few images at a time: between two turns nothing but pointers move.

    All maps are whole and lie B H W C. `sums` are those over images. What is named by `moving`
    holds all images, the rest those of one turn.
    """

    def __init__(
        self, name, vs, rpe, ws, stride, padding, moving, *, z=None, dz=None, dvs=None, sums=()
    ):
        k, _, L, h = rpe.shape
        _, H, W, J = vs.shape
        V = J - L * h
        tables = table(rpe, vs.dtype), table(ws, vs.dtype)
        self.name, self.kept = name, (vs, tables, z, dz, dvs, sums)
        self.call = Qna(
            TYPES[vs.dtype], torch.get_num_threads(), 0, h, V // h, L, H, W,
            *outputs(H, W, k, stride, padding), k, stride, padding, True,
            _whole(vs, V), _whole(vs), *map(pointer, tables),
            _whole(z), _whole(dz), _whole(dvs, V), _whole(dvs), *map(pointer, sums),
        )  # fmt: skip
        fields = [getattr(self.call, field) for field in moving]
        self.moving = [(field, field.data, field.batch * vs.element_size()) for field in fields]

    def __call__(self, start: int, images: int) -> None:
        self.call.B = images
        for field, data, step in self.moving:
            field.data = data + start * step
        run(self.name, self.call)


def outputs(H, W, window, stride, padding):
    """Rows and columns of the output; the sizes may be symbols of a tracer."""
    return (H + 2 * padding - window) // stride + 1, (W + 2 * padding - window) // stride + 1


def fitting(here, H, W, k, stride, padding):
    """The same, after a look whether the kernel takes such windows."""
    if k > WIDEST:
        raise ValueError(f"{here}: windows go up to {WIDEST}, got {k=}")
    if stride < 1 or not 0 <= padding < k:
        raise ValueError(
            f"{here}: needs stride >= 1 and 0 <= padding < k, got {stride=} {padding=}"
        )
    Ho, Wo = outputs(H, W, k, stride, padding)
    if min(Ho, Wo) < 1:
        raise ValueError(f"{here}: no window fits, got {H=} {W=} {k=} {padding=}; try padding=k//2")
    return Ho, Wo


def _output(s, v, rpe, ws, stride, padding, fold) -> Tensor:
    """Room for the output, after a look at the inputs."""
    here = "aggregate"
    k = rpe.shape[0]
    if s.shape[:3] != v.shape[:3] or s.shape[4] != v.shape[3] or s.dtype != v.dtype:
        raise ValueError(f"{here}: s and v must agree, got {s.shape=} {v.shape=}")
    if v.dtype not in TYPES:
        raise ValueError(f"{here}: dtype must be one of {list(TYPES)}, got {v.dtype=}")
    if rpe.shape != (k, k, *s.shape[3:]) or (ws is not None and ws.shape != rpe.shape):
        raise ValueError(f"{here}: rpe and ws must be (k, k, L, h), got {rpe.shape=} {s.shape=}")
    if ws is not None and not fold:
        raise ValueError(f"{here}: ws weighs a sum over queries; drop it or set fold=True")
    B, H, W, L, h = s.shape
    Ho, Wo = fitting(here, H, W, k, stride, padding)
    return v.new_empty(B, Ho, Wo, *(() if fold else (L,)), h, v.shape[-1])


# -- FLOPs: the products of the aggregation, one per query, offset and channel ------------------


def products(s_shape, v_shape, rpe_shape, stride: int, padding: int) -> int:
    B, H, W, L, h = s_shape
    Ho, Wo = outputs(H, W, rpe_shape[0], stride, padding)
    return 2 * B * Ho * Wo * L * h * v_shape[-1] * rpe_shape[0] ** 2


@register_flop_formula(torch.ops.saccade.aggregate)
def _flops(s, v, rpe, ws, stride, padding, fold, *args, out_shape=None, **kwargs) -> int:
    return products(s, v, rpe, stride, padding)


@register_flop_formula(torch.ops.saccade.aggregate_backward)
def _flops_backward(grad, s, v, rpe, ws, stride, padding, fold, *args, **kwargs) -> int:
    return 2 * products(s, v, rpe, stride, padding)


def shapes_of(vs, rpe) -> tuple[tuple[int, ...], tuple[int, ...]]:
    B, H, W, J = vs
    L, h = rpe[2:]
    return (B, H, W, L, h), (B, H, W, h, (J - L * h) // h)


@register_flop_formula(torch.ops.saccade.aggregate_joined)
def _flops_joined(vs, rpe, ws, stride, padding, fold, *args, **kwargs) -> int:
    return products(*shapes_of(vs, rpe), rpe, stride, padding)


@register_flop_formula(torch.ops.saccade.aggregate_joined_backward)
def _flops_joined_backward(grad, vs, rpe, ws, stride, padding, fold, *args, **kwargs) -> int:
    return 2 * products(*shapes_of(vs, rpe), rpe, stride, padding)
