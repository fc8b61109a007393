"""The feed-forward half of a block on CPU as one operator over the fused kernel.

    h = x W1 + b1      u = h * taps + shift      y = gelu(u) W2 + b2

Neither u nor gelu(u) ever exists as a map; h does only if a backward is to come, which needs no
more. Backward, dh exists for a part of the map at a time.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import Feed, alike, like, pointer, run
from saccade.ops.second import second

LANES = 16  # floats in the widest vector: hidden channels come in multiples of it


def feed_forward(
    x: Float[Tensor, "B H W C"],
    w1: Float[Tensor, "J C"],
    b1: Float[Tensor, "J"],
    taps: Float[Tensor, "J 1 3 3"] | None,
    shift: Float[Tensor, "J"] | None,
    w2: Float[Tensor, "D J"],
    b2: Float[Tensor, "D"],
    tanh: bool = False,
) -> Float[Tensor, "B H W D"]:
    """Two linear layers around GELU and, with `taps`, a depth-wise 3x3; `shift` goes with them."""
    tensors = x, w1, b1, taps, shift, w2, b2
    grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return torch.ops.saccade.feed_forward(*tensors, tanh, grad)[0]


def supports(x: Tensor, w1: Tensor) -> bool:
    """Whether the kernel takes such a call (where it can be called at all)."""
    return (
        x.dtype == w1.dtype == torch.float32
        and x.device == w1.device
        and x.device.type == "cpu"
        and x.ndim == 4
        and x.numel() > 0
        and w1.numel() > 0
        and len(w1) % LANES == 0
        and not torch.is_autocast_enabled("cpu")
    )


@torch.library.custom_op("saccade::feed_forward", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    taps: Tensor | None,
    shift: Tensor | None,
    w2: Tensor,
    b2: Tensor,
    tanh: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """y; and with `keep` h, for the backward."""
    y, h = _room(x, w1, b1, taps, shift, w2, b2, tanh, keep)
    call, _kept = _call(x, w1, b1, taps, shift, w2, b2, tanh)
    call.y, call.h = y.data_ptr(), pointer(h if keep else None)
    run("saccade_feed_forward", call)
    return y, h


@_forward.register_fake
def _room(x, w1, b1, taps, shift, w2, b2, tanh, keep):
    J, C = w1.shape
    fit = x.shape[-1] == C and w2.shape[1] == J and b1.shape == (J,) and b2.shape == w2.shape[:1]
    fit = fit and x.dim() == 4 and J % LANES == 0 and min(J, C, len(w2)) > 0
    if taps is not None:
        fit = fit and taps.shape == (J, 1, 3, 3) and shift is not None and shift.shape == (J,)
    if not fit or not alike(x, w1, b1, taps, shift, w2, b2):
        raise ValueError(
            "feed_forward: x is B H W C, w1 J C, w2 D J, taps J 1 3 3, all in float32 on one "
            f"device and J a multiple of {LANES}, got {x.shape=} {w1.shape=} {w2.shape=} {x.dtype=}"
        )
    y = x.new_empty(*x.shape[:3], len(w2))
    return y, x.new_empty(*x.shape[:3], J) if keep else x.new_empty(0)


@torch.library.custom_op("saccade::feed_forward_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    taps: Tensor | None,
    shift: Tensor | None,
    w2: Tensor,
    b2: Tensor,
    h: Tensor,
    tanh: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = x, w1, b1, taps, shift, w2, b2
    if not h.numel():
        _, h = _forward(*inputs, tanh, True)
    dx, *sums = like(*inputs)
    dw1, db1, dtaps, dshift, dw2, db2 = (t.zero_() for t in sums)
    call, _kept = _call(*inputs, tanh)
    h, grad = h.contiguous(), grad.contiguous()
    call.h, call.g = h.data_ptr(), grad.data_ptr()
    places = x.new_zeros(9, len(w1)) if taps is not None else None
    call.dx, call.dw1, call.db1, call.dtaps, call.dshift, call.dw2, call.db2 = map(
        pointer, (dx, dw1, db1, places, dshift, dw2, db2)
    )
    run("saccade_feed_backward", call)
    if places is not None:
        dtaps.copy_(places.mT.view_as(dtaps))
    return dx, dw1, db1, dtaps, dshift, dw2, db2


@_backward.register_fake
def _(grad, x, w1, b1, taps, shift, w2, b2, h, tanh):
    return like(x, w1, b1, taps, shift, w2, b2)


def _call(x, w1, b1, taps, shift, w2, b2, tanh) -> tuple[Feed, list[Tensor | None]]:
    """The structure for C++, and the tensors that must outlive the call."""
    B, H, W, C = x.shape
    if taps is None:  # no pixel knows its neighbours: one column of them
        B, H, W = 1, B * H * W, 1
    else:
        taps = taps.flatten(1).mT
    kept = [None if t is None else t.contiguous() for t in (x, w1, b1, taps, shift, w2, b2)]
    sizes = B, H, W, C, len(w1), len(w2), tanh
    return Feed(torch.get_num_threads(), *sizes, *map(pointer, kept)), kept


def _keep(ctx, inputs, output):
    *tensors, ctx.tanh, _ = inputs
    _, h = output
    ctx.mark_non_differentiable(h)
    ctx.set_materialize_grads(False)  # nobody asks for that of h: no map of zeros for it
    ctx.save_for_backward(*tensors, h)


def _differentiate(ctx, grad, _):
    if grad is None:  # nobody asks
        return (None,) * 9
    *tensors, h = ctx.saved_tensors
    gradients = torch.ops.saccade.feed_forward_backward(grad, *tensors, h, ctx.tanh)
    pairs = zip(gradients, tensors, strict=True)
    return *(None if t is None else d for d, t in pairs), None, None


def _keep_again(ctx, inputs, output):
    *tensors, _, ctx.tanh = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx, *weights):
    from saccade.ops.feed import Weights, plain

    def y(x, *letters):
        return plain(x, Weights(*letters), ctx.tanh)

    grad, *tensors = ctx.saved_tensors
    return *second(y, grad, tensors, weights), None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_again)


# -- FLOPs: as the plain form counts them ---------------------------------------------------------


@register_flop_formula(torch.ops.saccade.feed_forward)
def _flops(x, w1, b1, taps, shift, w2, *_, **__) -> int:
    B, H, W, C = x
    return 2 * B * H * W * w1[0] * (C + w2[0] + (9 if taps else 0))


@register_flop_formula(torch.ops.saccade.feed_forward_backward)
def _flops_backward(grad, *tensors, **_) -> int:
    return 2 * _flops(*tensors)
