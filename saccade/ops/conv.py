"""Convolutions by matrix products: 1 x 1 convolutions, and the weight gradient of 3 x 3 ones.

A 1 x 1 convolution of a channels_last map is one product over all pixels (`saccade.ops.linear`).

The weight gradient of a 3 x 3 convolution is nine products:

    y(p)     = sum over o of W_o x(p + o) + b            o in {-1, 0, 1}^2, zeros around x
    dW_o     = sum over p of dy(p) x(p + o)^T

On a CPU without AVX-512, PyTorch computes dW of channels_last maps two to three times more slowly
than it multiplies matrices. If x and dy lie pixel by pixel in memory, with equally wide borders of
zeros, then x(p + o) for all p begins at another address of the same memory: each dW_o is one
product of two views, without a copy. The forward and the gradient of x are PyTorch's own.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.linear import fuses, linear
from saccade.ops.modes import transformed
from saccade.ops.precision import autocasts

PIXELS, WIDTH = 1024, 128  # of the map, and channels of x, from which on the products are faster


def conv1x1(
    x: Float[Tensor, "B C H W"],
    weight: Float[Tensor, "D C 1 1"],
    bias: Tensor | None = None,
    stride: int = 1,
) -> Float[Tensor, "B D h w"]:
    """A linear map of every pixel, or of every `stride`-th; by our product where it is faster."""
    if x.ndim == 4:
        pixels, matrix = x.permute(0, 2, 3, 1), weight.flatten(1)
        if fuses(pixels, matrix):
            pixels = pixels[:, ::stride, ::stride].contiguous()
            return linear(pixels, matrix, bias).permute(0, 3, 1, 2)
    return F.conv2d(x, weight, bias, stride)


def conv3x3(
    x: Float[Tensor, "B C H W"], weight: Float[Tensor, "D C 3 3"], bias: Tensor | None = None
) -> Float[Tensor, "B D H W"]:
    """Stride 1, zeros around the map; the gradient of the weights in the faster of two ways."""
    if _by_products(x, weight):
        return _Convolve.apply(x, weight, bias)
    return F.conv2d(x, weight, bias, padding=1)


def _by_products(x: Tensor, weight: Tensor) -> bool:
    return (
        torch.is_grad_enabled()
        and weight.requires_grad
        and x.device.type == "cpu"
        and x.dtype == torch.float32 == weight.dtype
        and x.ndim == 4
        and x.shape[1] >= WIDTH
        and x.shape[2] * x.shape[3] >= PIXELS
        and x.is_contiguous(memory_format=torch.channels_last)
        and torch.backends.cpu.get_cpu_capability() == "AVX2"
        and not autocasts(x.device)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not transformed()
    )


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        need_x, need_weight, need_bias = ctx.needs_input_grad
        dx = F.conv_transpose2d(grad, weight, padding=1) if need_x else None
        dw = weight_gradient(grad, x) if need_weight else None
        db = grad.sum((0, 2, 3)) if need_bias else None
        return dx, dw, db


def weight_gradient(
    grad: Float[Tensor, "B D H W"], x: Float[Tensor, "B C H W"]
) -> Float[Tensor, "D C 3 3"]:
    """dW by nine products, in channels_last memory."""
    row = x.shape[3] + 2
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).flatten(0, 2)
    dy = F.pad(grad.permute(0, 2, 3, 1), (0, 0, 0, 2, 0, 2)).flatten(0, 2)
    count = len(pixels) - 2 * row - 2  # the rest of dy is border
    dy = dy[:count].mT
    shifts = [i * row + j for i in range(3) for j in range(3)]
    products = torch.stack([dy @ pixels[shift : shift + count] for shift in shifts], 1)
    return products.unflatten(1, (3, 3)).permute(0, 3, 1, 2)
