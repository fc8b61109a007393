"""Inference on CPU: products of a map's pixels, fused with the steps around them.

    product          y = relu(x W^T + b + skip)         W laid out once; relu and skip optional
    projected        SASA of (q, k, v) = x W^T + b      see ops/sasa.py
    convolution      y = relu(norm(conv(x)) + skip)     each part optional; see src/convolution.h
    learned queries  y = x + QnA(LayerNorm(x))          see ops/qna.py
    windows          y = x + attention(LayerNorm(x))    see ops/window.py

Maps lie B H W C in memory. As in `residual.py`, a call is prepared once, and tensors that are
derived from weights are computed anew when the weights have changed.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.ops.native.call import (
    TYPES,
    Convolution,
    Linear,
    Map,
    Qna,
    Sasa,
    Summary,
    Windows,
    fresh,
    half,
    pointer,
    run,
)  # fmt: skip
from saccade.ops.native.residual import FromWeights, Memory, Norm, NormOfMap, copied, packed

Matrix = Callable[[], tuple[Tensor, Tensor | None]]


class PixelProduct:
    """relu(x W^T + b + skip); `matrix()` computes W (D C) and b (D, or None)."""

    def __init__(self, outputs: int, inputs: int, weights: Iterable[Tensor], matrix: Matrix,
                 relu: bool = False):  # fmt: skip
        self.outputs, self.inputs, self.relu = outputs, inputs, relu

        def lay_out(call: Any) -> tuple[Tensor, ...]:
            w, b = (None if t is None else t.detach().contiguous() for t in matrix())
            if w is None or w.shape != (outputs, inputs) or (b is not None and len(b) != outputs):
                raise ValueError(f"PixelProduct: weights do not fit, got {outputs=} {inputs=}")
            whole = Linear(1, 1, 1, inputs, outputs)
            whole.w, whole.w_output, whole.w_input, whole.b = pointer(w), inputs, 1, pointer(b)
            whole.half = half()
            return (packed("linear", whole),)

        self.derived = FromWeights(weights, lay_out, Memory())
        self.derived(None)  # weights that do not fit are refused at once

    def __call__(self, x: Float[Tensor, "B H W C"], skip: Tensor | None = None) -> Tensor:
        out = fresh(x, *x.shape[:3], self.outputs)
        (matrix,) = self.derived(None)
        call = Linear(torch.get_num_threads(), 1, out.numel() // self.outputs, self.inputs)
        call.outputs, call.relu, call.half = self.outputs, self.relu, half()
        call.x, call.y, call.packed = x.data_ptr(), out.data_ptr(), matrix.data_ptr()
        call.skip = pointer(skip)
        run("saccade_linear_forward", call)
        return out


class MeanProduct:
    """W (mean over pixels of x) + b: the means are those under a softmax of equal logits."""

    def __init__(self, product: PixelProduct):
        self.product = product
        zeros = torch.zeros(1, product.inputs)
        self.ask = FromWeights([zeros], lambda _: (zeros,), Memory())

    def takes(self, x: Float[Tensor, "B H W C"]) -> bool:
        return x.numel() > 0 and x.shape[3] == self.product.inputs

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B 1 1 D"]:
        B, H, W, C = x.shape
        (ask,), mean, lse = self.ask(None), fresh(x, B, 1, 1, C), fresh(x, B)
        call = Summary(torch.get_num_threads(), B, H * W, C, 1)
        call.x, call.ask, call.mean, call.lse = map(pointer, (x, ask, mean, lse))
        run("saccade_summary_forward", call)
        return self.product(mean)


class ReadyConvolution:
    """relu(LayerNorm(conv(x)) + skip); norm, relu and skip are optional.

    product   the convolution as a product, of patches of `kernel` x `kernel` pixels; it also says
              whether there is a relu
    mean      x is first averaged over stride x stride pixels, then relu(x + shift) is taken
    """

    def __init__(self, product: PixelProduct, kernel: int, stride: int, padding: int = 0,
                 norm: Norm | None = None, mean: bool = False):  # fmt: skip
        self.product, self.norm = product, norm
        self.window = kernel, stride, padding, mean

    def takes(self, x: Float[Tensor, "B H W C"]) -> bool:
        kernel, stride, padding, _ = self.window
        fits = min(x.shape[1:3]) + 2 * padding >= kernel
        whole = padding or not any(side % stride for side in x.shape[1:3])
        return fits and bool(whole) and x.shape[3] * kernel**2 == self.product.inputs

    def __call__(
        self, x: Float[Tensor, "B H W C"], skip: Tensor | None = None, shift: Tensor | None = None
    ) -> Float[Tensor, "B h w D"]:
        (kernel, stride, padding, mean), (B, H, W, C) = self.window, x.shape
        if mean:
            h, w = -(-H // stride), -(-W // stride)
        else:
            h, w = ((side + 2 * padding - kernel) // stride + 1 for side in (H, W))
        out = fresh(x, B, h, w, self.product.outputs)
        (matrix,) = self.product.derived(None)
        call = Convolution(torch.get_num_threads(), B, H, W, C, self.product.outputs)
        call.kernel, call.stride, call.padding, call.mean = kernel, stride, padding, mean
        call.relu, call.half = self.product.relu, half()
        batch, row, column, channel = x.stride()
        call.x = Map(x.data_ptr(), batch, channel, row, column)
        call.packed, call.y = matrix.data_ptr(), out.data_ptr()
        call.shift, call.skip = pointer(shift), pointer(skip)
        for name, address in ({} if self.norm is None else self.norm.pointers).items():
            setattr(call, name, address)
        run("saccade_convolution_forward", call)
        return out


class ProjectedAttention:
    """SASA of the output of `project`: queries, keys (with a content term) and values side by side.

    `row` and `col` are the tables of positions, or None.
    """

    def __init__(self, project: PixelProduct, row: Tensor | None, col: Tensor | None, *,
                 width: int, heads: int, window: int, mask: bool, content: bool):  # fmt: skip
        self.project, self.alive = project, (row, col)
        self.width, self.parts = width, 2 + content
        self.call = Sasa(TYPES[torch.float32], 1, 0, heads, width // heads, 0, 0, window, mask)
        self.call.tables = 1 if row is None else row.shape[0]
        self.call.row, self.call.col = pointer(row), pointer(col)

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        qkv, (B, H, W, _), C = self.project(x), x.shape, self.width
        out, call = fresh(x, B, H, W, C), copied(self.call)
        call.threads, call.B, call.H, call.W = torch.get_num_threads(), B, H, W
        all_channels = self.parts * C
        parts = [
            Map(qkv.data_ptr() + 4 * i * C, H * W * all_channels, 1, W * all_channels, all_channels)
            for i in range(self.parts)
        ]
        call.q, call.v = parts[0], parts[-1]
        if self.parts == 3:
            call.k = parts[1]
        call.out = Map(out.data_ptr(), H * W * C, 1, W * C, C)
        run("saccade_sasa_forward", call)
        return out


class LearnedQueriesResidual:
    """x + mix(QnA(LayerNorm(x))); `project` gives values and scores side by side.

    With a stride, the output of `skip` is added instead of x.
    """

    def __init__(self, norm: Norm, project: PixelProduct, mix: PixelProduct, rpe: Tensor,
                 ws: Tensor | None, padding: int, stride: int = 1,
                 skip: ReadyConvolution | None = None):  # fmt: skip
        self.norm, self.project, self.mix, self.skip = NormOfMap(norm), project, mix, skip
        (k, _, L, h), V = rpe.shape, mix.inputs
        tables = [t for t in (rpe, ws) if t is not None]  # four axes: casts may reorder them
        self.tables = FromWeights(tables, lambda _: tuple(t.contiguous() for t in tables), Memory())
        self.call = Qna(TYPES[torch.float32], 1, 0, h, V // h, L)
        self.call.window, self.call.stride, self.call.padding = k, stride, padding
        self.call.fold = 1

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B h w D"]:
        vs, (B, H, W, _) = self.project(self.norm(x)), x.shape
        V, J, call = self.mix.inputs, self.project.outputs, copied(self.call)
        h, w = ((n + 2 * call.padding - call.window) // call.stride + 1 for n in (H, W))
        z = fresh(x, B, h, w, V)
        call.threads, call.B, call.H, call.W = torch.get_num_threads(), B, H, W
        call.Ho, call.Wo = h, w
        rpe, *ws = self.tables(None)
        call.bias, call.weight = rpe.data_ptr(), pointer(*ws) if ws else None
        call.s = Map(vs.data_ptr() + 4 * V, H * W * J, 1, W * J, J)
        call.v = Map(vs.data_ptr(), H * W * J, 1, W * J, J)
        call.out = Map(z.data_ptr(), h * w * V, 1, w * V, V)
        run("saccade_qna_forward", call)
        return self.mix(z, x if self.skip is None else self.skip(x))


class WindowsResidual:
    """x + mix(attention inside windows of LayerNorm(x)).

    bias    of windows of h x w pixels (heads, h w, h w), computed from `table`
    """

    def __init__(self, norm: Norm, project: PixelProduct, mix: PixelProduct, table: Tensor,
                 window: int, bias: Callable[[int, int], Tensor]):  # fmt: skip
        self.norm, self.project, self.mix = NormOfMap(norm), project, mix
        self.window, self.heads = window, table.shape[1]
        self.bias = FromWeights([table], lambda sides: (bias(*sides).contiguous(),), Memory())

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        qkv, (B, H, W, C) = self.project(self.norm(x)), x.shape
        sides = min(self.window, H), min(self.window, W)
        (bias,), y = self.bias(sides, key=sides), fresh(x, B, H, W, C)
        call = Windows(torch.get_num_threads(), B, H, W, C, self.heads, *sides, half())
        call.qkv, call.bias, call.y = qkv.data_ptr(), bias.data_ptr(), y.data_ptr()
        run("saccade_windows_forward", call)
        return self.mix(y, x)
