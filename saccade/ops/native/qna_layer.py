"""The whole layer of learned queries on CPU, projections and all, a few images at a time.

    (v, s) = x W + b        z = aggregate(s, v)        y = z Wo + bo

What lies between the products is read while it is still in the cache, and without a gradient to
come it is never held for more than those few images. Backward the same way: the gradients of z, v
and s exist for a few images only.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import like
from saccade.ops.native.linear import AddGradients, Times
from saccade.ops.native.qna import InTurns, fitting, outputs, parted, products, shapes_of, supports
from saccade.ops.second import second

ENOUGH = 2**21  # bytes of values and scores, for each thread, that a turn takes


def attend(
    x: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "J C"],
    bias: Float[Tensor, "J"] | None,
    rpe: Float[Tensor, "k k L h"],
    ws: Float[Tensor, "k k L h"] | None,
    mix: Float[Tensor, "D V"],
    mix_bias: Float[Tensor, "D"] | None,
    stride: int,
    padding: int,
) -> Float[Tensor, "B Ho Wo D"]:
    """The layer by its letters: W makes J channels, first those of the values, then the scores."""
    tensors = x, weight, bias, rpe, ws, mix, mix_bias
    grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return torch.ops.saccade.attend(*tensors, stride, padding, grad)[0]


def takes(x: Tensor, weight: Tensor, window: int) -> bool:
    """Whether the layer can be computed so: in float32, where sums over turns lose nothing."""
    return (
        x.dtype == weight.dtype == torch.float32
        and supports(x, window)
        and not torch.is_autocast_enabled("cpu")
    )


def _images(x: Tensor, weight: Tensor) -> int:
    """How many images a turn takes."""
    bytes_each = 4 * x.shape[1] * x.shape[2] * len(weight)
    return min(len(x), max(1, torch.get_num_threads() * ENOUGH // bytes_each))


def _pixels(t: Tensor) -> Tensor:
    return t.view(-1, t.shape[-1])


@torch.library.custom_op("saccade::attend", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rpe: Tensor,
    ws: Tensor | None,
    mix: Tensor,
    mix_bias: Tensor | None,
    stride: int,
    padding: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y; and with `keep` values and scores, and z, for the backward."""
    y, *kept = _room(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding, keep)
    n = _images(x, weight)
    if keep:
        vs, z = kept
    else:
        vs = x.new_empty(n, *x.shape[1:3], len(weight))
        z = x.new_empty(n, *y.shape[1:3], mix.shape[1])
    xs = _pixels(x.contiguous())
    project = Times(xs, weight, bias, _pixels(vs), (True, keep))
    moving = ("s", "v", "out") if keep else ()
    aggregate = InTurns("saccade_qna_forward", vs, rpe, ws, stride, padding, moving, z=z)
    blend = Times(_pixels(z), mix, mix_bias, _pixels(y), (keep, True))
    before, after = x.shape[1] * x.shape[2], y.shape[1] * y.shape[2]
    for start in range(0, len(x), n):
        images = min(n, len(x) - start)
        project(start * before, images * before)
        aggregate(start, images)
        blend(start * after, images * after)
    return y, *kept


@_forward.register_fake
def _room(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding, keep):
    k, _, L, h = rpe.shape
    B, H, W, C = x.shape
    J, V = len(weight), mix.shape[1]
    if weight.shape[1] != C or J - L * h != V or V < 1 or V % h:
        raise ValueError(f"attend: got {x.shape=} {weight.shape=} {rpe.shape=} {mix.shape=}")
    Ho, Wo = fitting("attend", H, W, k, stride, padding)
    y = x.new_empty(B, Ho, Wo, len(mix))
    kept = ((B, H, W, J), (B, Ho, Wo, V)) if keep else ((0,), (0,))
    return y, *(x.new_empty(shape) for shape in kept)


@torch.library.custom_op("saccade::attend_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rpe: Tensor,
    ws: Tensor | None,
    mix: Tensor,
    mix_bias: Tensor | None,
    vs: Tensor,
    z: Tensor,
    stride: int,
    padding: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = x, weight, bias, rpe, ws, mix, mix_bias
    vs, z = vs.contiguous(), z.contiguous()  # as they were made
    if not vs.numel():
        _, vs, z = _forward(*inputs, stride, padding, True)
    gradients = like(*inputs)
    dx, *sums = gradients
    dweight, dbias, drpe, dws, dmix, dmix_bias = (t.zero_() for t in sums)
    part = [None if t is None else x.new_empty(t.shape) for t in (rpe, ws)]
    n = _images(x, weight)
    dvs = vs.new_empty(n, *vs.shape[1:])
    shared = z.shape == x.shape  # dz may lie where dx will: by then it has been read
    dz = dx if shared else z.new_empty(n, *z.shape[1:])
    moving = ("s", "v", "out", "gout") if shared else ("s", "v", "out")
    aggregate = InTurns(
        "saccade_qna_backward", vs, rpe, ws, stride, padding, moving,
        z=z, dz=dz, dvs=dvs, sums=part,
    )  # fmt: skip
    xs, gs, zs, dzs, dvss = map(_pixels, (x.contiguous(), grad.contiguous(), z, dz, dvs))
    blend = Times(gs, mix.mT, None, dzs, (True, shared))
    project = Times(dvss, weight.mT, None, _pixels(dx), (False, True))
    sums_in = AddGradients(dvss, xs, dweight, None if bias is None else dbias, (True, False))
    sums_out = AddGradients(gs, zs, dmix, None if mix_bias is None else dmix_bias)
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
        drpe += part[0]
        if ws is not None:
            dws += part[1]
    return gradients


@_backward.register_fake
def _(grad, x, weight, bias, rpe, ws, mix, mix_bias, vs, z, stride, padding):
    return like(x, weight, bias, rpe, ws, mix, mix_bias)


def _keep(ctx, inputs, output):
    *tensors, ctx.stride, ctx.padding, _ = inputs
    _, vs, z = output
    ctx.mark_non_differentiable(vs, z)
    ctx.set_materialize_grads(False)  # nobody asks for those of vs and z: no maps of zeros for them
    ctx.save_for_backward(*tensors, vs, z)


def _differentiate(ctx, grad, *_):
    *tensors, vs, z = ctx.saved_tensors
    gradients = torch.ops.saccade.attend_backward(grad, *tensors, vs, z, ctx.stride, ctx.padding)
    pairs = zip(gradients, tensors, strict=True)
    return *(None if t is None else d for d, t in pairs), None, None, None


def _keep_again(ctx, inputs, output):
    *tensors, _, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx, *weights):
    from saccade.ops.qna import unrolled

    def plain(x, weight, bias, rpe, ws, mix, mix_bias):
        s, v = parted(F.linear(x, weight, bias), rpe)
        return F.linear(unrolled(s, v, rpe, ws, ctx.stride, ctx.padding).flatten(3), mix, mix_bias)

    grad, *tensors = ctx.saved_tensors
    return *second(plain, grad, tensors, weights), None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_again)


# -- FLOPs: the two products, and the aggregation's own ------------------------------------------


@register_flop_formula(torch.ops.saccade.attend)
def _flops(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding, keep, **_) -> int:
    B, H, W, C = x
    s, v = shapes_of((B, H, W, weight[0]), rpe)
    Ho, Wo = outputs(H, W, rpe[0], stride, padding)
    linear = 2 * B * (H * W * C * weight[0] + Ho * Wo * mix[0] * mix[1])
    return linear + products(s, v, rpe, stride, padding)


@register_flop_formula(torch.ops.saccade.attend_backward)
def _flops_backward(grad, x, weight, bias, rpe, ws, mix, mix_bias, vs, z, *how, **_) -> int:
    return 2 * _flops(x, weight, bias, rpe, ws, mix, mix_bias, *how, True)
