"""A linear map of every pixel on CPU as a torch operator over our own products.

y = x W^T + b
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import alike
from saccade.ops.native.linear import add_gradients, times
from saccade.ops.second import second


def linear(
    x: Float[Tensor, "*B C"], weight: Float[Tensor, "D C"], bias: Float[Tensor, "D"] | None = None
) -> Float[Tensor, "*B D"]:
    """What F.linear gives."""
    return torch.ops.saccade.linear(x, weight, bias)


def supports(x: Tensor, weight: Tensor) -> bool:
    """Whether it takes such a call (where the kernels can be called at all)."""
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device == weight.device
        and x.device.type == "cpu"
        and x.numel() > 0
        and x.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
    )


@torch.library.custom_op("saccade::linear", mutates_args=(), device_types="cpu")
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = _room(x, weight, bias)
    D, C = weight.shape
    bias = None if bias is None else bias.contiguous()
    times(x.contiguous().view(-1, C), weight, bias, y.view(-1, D))
    return y


@_forward.register_fake
def _room(x, weight, bias):
    fit = x.shape[-1] == weight.shape[1] and (bias is None or bias.shape == weight.shape[:1])
    if not fit or not alike(x, weight, bias):
        raise ValueError(
            f"linear: x ends in C, weight is D C and bias D, in float32 on one device, "
            f"got {x.shape=} {weight.shape=} {x.dtype=}"
        )
    return x.new_empty(*x.shape[:-1], len(weight))


@torch.library.custom_op("saccade::linear_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    D, C = weight.shape
    dx, dweight, dbias = gradients = _like(grad, x, weight, bias, wanted)
    g = grad.contiguous().view(-1, D)
    if wanted[0]:
        times(g, weight.mT, None, dx.view(-1, C))
    if wanted[1] or dbias.numel():
        sums = dweight.zero_() if wanted[1] else torch.zeros_like(weight)
        db = dbias.zero_() if dbias.numel() else None
        add_gradients(g, x.contiguous().view(-1, C), sums, db)
    return gradients


@_backward.register_fake
def _like(grad, x, weight, bias, wanted):
    """Room for the gradients that are wanted; empty ones for the others."""
    of_bias = wanted[2] and bias is not None
    return (
        x.new_empty(x.shape if wanted[0] else (0,)),
        weight.new_empty(weight.shape if wanted[1] else (0,)),
        weight.new_empty(len(weight) if of_bias else 0),
    )


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad):
    wanted = list(ctx.needs_input_grad[:3])
    gradients = torch.ops.saccade.linear_backward(grad, *ctx.saved_tensors, wanted)
    asked = zip(gradients, wanted, strict=True)
    return tuple(g if w else None for g, w in asked)


def _keep_again(ctx, inputs, output):
    *tensors, ctx.wanted = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx, *weights):
    grad, *tensors = ctx.saved_tensors
    weights = [w if wanted else None for w, wanted in zip(weights, ctx.wanted, strict=True)]
    return *second(F.linear, grad, tensors, weights), None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_again)


@register_flop_formula(torch.ops.saccade.linear)
def _flops(x, weight, *_, **__) -> int:
    pixels = 1
    for n in x[:-1]:
        pixels *= n
    return 2 * pixels * weight[0] * weight[1]


@register_flop_formula(torch.ops.saccade.linear_backward)
def _flops_backward(grad, x, weight, bias, wanted, **_) -> int:
    return (wanted[0] + wanted[1]) * _flops(x, weight)
