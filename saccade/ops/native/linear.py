"""Products of a map's pixels with small matrices, and the gradients of those matrices, on CPU.

    y = x w^T + b            dw += g^T x,  db += sum over pixels of g

with one matrix for all images (`times`, `add_gradients`) or one for each (`..._each`).

By our own kernel where it is faster than torch's library, MKL. MKL copies the pixels into another
layout first, up to a quarter of its time, although each is used only once; and on processors that
are not Intel's it uses vectors of 256 bits: on Zen 5, which has 512, our kernel is twice as fast.
On Intel's with AVX-512, and without AVX2, torch computes the products. All in float32, into
tensors that exist already.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import Linear, pointer, run
from saccade.ops.operator import Kernel

FEWEST = 96  # pixels; with fewer, laying out a matrix costs more than the kernel saves


@torch.compiler.assume_constant_result
def pays() -> bool:
    """Whether the kernel is the faster one on this machine."""
    return native.available() and bool(native.library().saccade_linear_pays())


def times(
    x: Float[Tensor, "M K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, "N"] | None,
    out: Float[Tensor, "M N"],
) -> None:
    """out = x weight^T + bias, of dense x and out."""
    Product(x, out, weight, bias)(0, len(x))


def add_gradients(
    grad: Float[Tensor, "M N"],
    x: Float[Tensor, "M K"],
    dweight: Float[Tensor, "N K"],
    dbias: Float[Tensor, "N"] | None,
) -> None:
    """Add to dweight and dbias their gradients by `times`; all tensors are dense."""
    Product(x, grad, dweight, dbias, gradients=True)(0, len(x))


class Product:
    """`times`, or with `gradients` its `add_gradients`, for a few pixels at a time.

    From one turn to the next only pointers change. `moving` says of x and of y (out, or its
    gradient) whether it holds the pixels of all turns, or only of one and is overwritten by each.
    """

    def __init__(self, x, y, weight, bias, moving=(True, True), gradients=False):
        self.x, self.y, self.weight, self.bias = x, y, weight, bias
        self.moving, self.gradients = moving, gradients
        self.steps = [4 * t.shape[1] * moves for t, moves in zip((x, y), moving, strict=True)]
        self.at, self.call = (x.data_ptr(), y.data_ptr()), None
        if pays():
            self.call = Linear(torch.get_num_threads(), 1, 0, x.shape[1], y.shape[1])
            if gradients:
                self.call.dw, self.call.db = weight.data_ptr(), pointer(bias)
            else:
                self.call.w, self.call.b = weight.data_ptr(), pointer(bias)
                self.call.w_output, self.call.w_input = weight.stride()

    def __call__(self, start: int, pixels: int) -> None:
        if self.call is not None and pixels >= FEWEST:
            self.call.rows = pixels
            self.call.x, self.call.y = (
                at + start * step for at, step in zip(self.at, self.steps, strict=True)
            )
            run(f"saccade_linear_{'back' if self.gradients else 'for'}ward", self.call)
            return
        x, y = (
            t.narrow(0, start if moves else 0, pixels)
            for t, moves in zip((self.x, self.y), self.moving, strict=True)
        )
        if self.gradients:
            self.weight.addmm_(y.mT, x)
            if self.bias is not None:
                self.bias += y.sum(0)
        elif self.bias is None:
            torch.mm(x, self.weight.mT, out=y)
        else:
            torch.addmm(self.bias, x, self.weight.mT, out=y)


def times_each(
    x: Float[Tensor, "B M K"],
    weight: Float[Tensor, "B N K"],
    bias: Float[Tensor, "B N"] | None,
    out: Float[Tensor, "B M N"],
) -> None:
    """out = x weight^T + bias image by image, of dense x and out."""
    if pays() and x.shape[1] >= FEWEST:
        call = Linear(torch.get_num_threads(), *x.shape, weight.shape[1], x.data_ptr())
        call.w, call.b, call.y = weight.data_ptr(), pointer(bias), out.data_ptr()
        call.w_batch, call.w_output, call.w_input = weight.stride()
        call.b_batch = 0 if bias is None else bias.stride(0)
        run("saccade_linear_forward", call)
        return
    weight = weight.mT.contiguous()  # few numbers, and a faster product
    if bias is None:
        torch.bmm(x, weight, out=out)
    else:
        torch.baddbmm(bias[:, None], x, weight, out=out)


def add_gradients_each(
    grad: Float[Tensor, "B M N"],
    x: Float[Tensor, "B M K"],
    dweight: Float[Tensor, "B N K"],
    dbias: Float[Tensor, "B N"],
) -> None:
    """Add to dweight and dbias their gradients by `times_each`; all tensors are dense."""
    if pays() and x.shape[1] >= FEWEST:
        call = Linear(torch.get_num_threads(), *x.shape, grad.shape[2], x.data_ptr())
        call.y, call.dw, call.db = grad.data_ptr(), dweight.data_ptr(), dbias.data_ptr()
        run("saccade_linear_backward", call)
        return
    dweight.baddbmm_(grad.mT, x)
    dbias += grad.sum(1)


# -- as an operator -------------------------------------------------------------------------------


def _takes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.is_contiguous() and x.numel() >= FEWEST * weight.shape[1]


def _forward(out, residuals, x, weight, bias) -> None:
    D, C = weight.shape
    times(x.view(-1, C), weight, bias, out.view(-1, D))


def _backward(grad, residuals, needs, x, weight, bias):
    D, C = weight.shape
    dx = dweight = dbias = None
    g = grad.view(-1, D)
    if needs[0]:
        dx = torch.empty_like(x)
        times(g, weight.mT, None, dx.view(-1, C))
    if needs[1] or needs[2]:
        dweight = torch.zeros_like(weight)
        dbias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        add_gradients(g, x.view(-1, C), dweight, dbias)
    return dx, dweight, dbias


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"float32, contiguous, at least {FEWEST} pixels, where it beats torch's product",
    ready=pays,
)
