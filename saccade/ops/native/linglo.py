"""Key-only attention's summary of an image on CPU, as a torch operator over the fused kernel.

    s(n) = ask . x(n)      a = softmax of s over the tokens      mean = sum over n of a(n) x(n)

The tokens are read once forward and once backward; of the softmax only its log-sum-exp is kept.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.native.call import Summary, pointer, run
from saccade.ops.second import second


def summary(x: Float[Tensor, "B N C"], ask: Float[Tensor, "h C"]) -> Float[Tensor, "B h C"]:
    """One mean of the tokens per head, by the fused kernel."""
    return torch.ops.saccade.summary(x, ask)[0]


def supports(x: Tensor) -> bool:
    """Whether the kernel takes such tokens (where it can be called at all)."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


def means(x: Float[Tensor, "B N C"], ask: Float[Tensor, "h C"]) -> tuple[Tensor, Tensor]:
    """The means, and the log-sum-exp of every head's logits; no operator, no gradient."""
    mean, lse = _empty_output(x, ask)
    x, ask = x.contiguous(), ask.contiguous()
    run("saccade_summary_forward", _call(x, ask, mean=mean, lse=lse))
    return mean, lse


def means_backward(
    dmean: Float[Tensor, "B h C"],
    x: Float[Tensor, "B N C"],
    ask: Float[Tensor, "h C"],
    mean: Float[Tensor, "B h C"],
    lse: Float[Tensor, "B h"],
    dx: Float[Tensor, "B N C"],
    add: bool,
) -> Float[Tensor, "h C"]:
    """The gradient of ask; that of x goes to dx (dense), in place of what is there or added."""
    dask = ask.new_empty(ask.shape)
    dmean, x, ask = dmean.contiguous(), x.contiguous(), ask.contiguous()
    delta = (dmean * mean).sum(-1)
    call = _call(x, ask, lse=lse, dmean=dmean, delta=delta, dx=dx, dask=dask)
    call.add = add
    run("saccade_summary_backward", call)
    return dask


@torch.library.custom_op("saccade::summary", mutates_args=(), device_types="cpu")
def _forward(x: Tensor, ask: Tensor) -> tuple[Tensor, Tensor]:
    return means(x, ask)


@_forward.register_fake
def _empty_output(x, ask):
    if x.dtype != torch.float32 or ask.dtype != x.dtype or ask.shape[1] != x.shape[2]:
        raise ValueError(
            f"summary: x is B N C and ask h C, in float32, got {x.shape=} {ask.shape=} {x.dtype=}"
        )
    return x.new_empty(x.shape[0], *ask.shape), x.new_empty(x.shape[0], ask.shape[0])


@torch.library.custom_op("saccade::summary_backward", mutates_args=(), device_types="cpu")
def _backward(
    dmean: Tensor, x: Tensor, ask: Tensor, mean: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    dx = x.new_empty(x.shape)
    return dx, means_backward(dmean, x, ask, mean, lse, dx, add=False)


@_backward.register_fake
def _empty_gradients(dmean, x, ask, mean, lse):
    return x.new_empty(x.shape), ask.new_empty(ask.shape)


def _call(x: Tensor, ask: Tensor, **rest: Tensor) -> Summary:
    call = Summary(torch.get_num_threads(), *x.shape, len(ask), 0, pointer(x), pointer(ask))
    for name, tensor in rest.items():
        setattr(call, name, pointer(tensor))
    return call


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx, dmean, _):
    return torch.ops.saccade.summary_backward(dmean, *ctx.saved_tensors)


def _keep_all(ctx, inputs, output):
    dmean, x, ask, _, _ = inputs
    ctx.save_for_backward(dmean, x, ask)


def _differentiate_again(ctx, *weights):
    def plain(x, ask):
        return (ask @ x.mT).softmax(-1) @ x

    dmean, *inputs = ctx.saved_tensors
    return *second(plain, dmean, inputs, weights), None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_differentiate_again, setup_context=_keep_all)


@register_flop_formula(torch.ops.saccade.summary)
def _flops(x, ask, *_, **__) -> int:
    B, N, C = x
    return 2 * 2 * B * N * C * ask[0]


@register_flop_formula(torch.ops.saccade.summary_backward)
def _flops_backward(dmean, x, ask, *_, **__) -> int:
    B, N, C = x
    return 2 * 4 * B * N * C * ask[0]
