"""Products of a map's pixels with small matrices, and the gradients of those matrices, on CPU.

    y = x w^T + b            dw += g^T x,  db += sum over pixels of g

of one matrix for all (`times`, `add_gradients`) or one for each image (`..._each`).

By a kernel of our own where that is the faster one: with arithmetic of 256 bits (AVX2, and Zen 4's
AVX-512), MKL spends up to a quarter of its time on laying out pixels that are used only once.
Elsewhere by torch, whose libraries know the processor's wider vectors and matrix units. All in
float32, into tensors that are there.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import Linear, pointer, run

FEWEST = 256  # pixels for which it pays to lay out a matrix


def ours() -> bool:
    """Whether the kernel is the faster one here."""
    return native.available() and bool(native.library().saccade_linear_pays())


def times(
    x: Float[Tensor, "M K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, "N"] | None,
    out: Float[Tensor, "M N"],
) -> None:
    """out = x weight^T + bias, of dense x and out."""
    if ours() and len(x) >= FEWEST:
        call = Linear(torch.get_num_threads(), 1, *x.shape, len(weight), x.data_ptr())
        call.w, call.b, call.y = weight.data_ptr(), pointer(bias), out.data_ptr()
        call.w_output, call.w_input = weight.stride()
        run("saccade_linear_forward", call)
    elif bias is None:
        torch.mm(x, weight.mT, out=out)
    else:
        torch.addmm(bias, x, weight.mT, out=out)


def add_gradients(
    grad: Float[Tensor, "M N"],
    x: Float[Tensor, "M K"],
    dweight: Float[Tensor, "N K"],
    dbias: Float[Tensor, "N"] | None,
) -> None:
    """Adds to dweight and dbias what `times` gives them, all dense."""
    if ours() and len(x) >= FEWEST:
        call = Linear(torch.get_num_threads(), 1, *x.shape, grad.shape[1], x.data_ptr())
        call.y, call.dw, call.db = grad.data_ptr(), dweight.data_ptr(), pointer(dbias)
        run("saccade_linear_backward", call)
        return
    dweight.addmm_(grad.mT, x)
    if dbias is not None:
        dbias += grad.sum(0)


def times_each(
    x: Float[Tensor, "B M K"],
    weight: Float[Tensor, "B N K"],
    bias: Float[Tensor, "B N"] | None,
    out: Float[Tensor, "B M N"],
) -> None:
    """out = x weight^T + bias image by image, of dense x and out."""
    if ours() and x.shape[1] >= FEWEST:
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
    """Adds to dweight and dbias what `times_each` gives them, all dense."""
    if ours() and x.shape[1] >= FEWEST:
        call = Linear(torch.get_num_threads(), *x.shape, grad.shape[2], x.data_ptr())
        call.y, call.dw, call.db = grad.data_ptr(), dweight.data_ptr(), dbias.data_ptr()
        run("saccade_linear_backward", call)
        return
    dweight.baddbmm_(grad.mT, x)
    dbias += grad.sum(1)
