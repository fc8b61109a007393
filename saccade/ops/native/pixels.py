"""Products of a map's pixels for inference on CPU, and what is made of them.

    product          y = relu(x W^T + b + skip)         W laid out once; relu and skip if asked for
    projected        SASA of (q, k, v) = x W^T + b      see ops/sasa.py
    learned queries  y = x + QnA(LayerNorm(x))          see ops/qna.py

Maps lie B H W C. As in `residual.py`, a call is prepared once, and what follows from weights is
computed anew when their contents are others.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.ops.native.call import TYPES, Linear, Map, Qna, Sasa, pointer, run
from saccade.ops.native.residual import FromWeights, Memory, Norm, NormOfMap, copied, packed

Matrix = Callable[[], tuple[Tensor, Tensor | None]]


class PixelProduct:
    """relu(x W^T + b + skip); `matrix` computes W (D C) and b (D), or None, of `weights`."""

    def __init__(self, outputs: int, inputs: int, weights: Iterable[Tensor], matrix: Matrix,
                 relu: bool = False):  # fmt: skip
        self.outputs, self.inputs, self.relu = outputs, inputs, relu

        def lay_out(call: Any) -> tuple[Tensor, ...]:
            w, b = (None if t is None else t.detach().contiguous() for t in matrix())
            whole = Linear(1, 1, 1, inputs, outputs)
            whole.w, whole.w_output, whole.w_input, whole.b = pointer(w), inputs, 1, pointer(b)
            return (packed("linear", whole),)

        self.derived = FromWeights(weights, lay_out, Memory())

    def __call__(self, x: Float[Tensor, "B H W C"], skip: Tensor | None = None) -> Tensor:
        out = x.new_empty(*x.shape[:3], self.outputs)
        (matrix,) = self.derived(None)
        call = Linear(torch.get_num_threads(), 1, out.numel() // self.outputs, self.inputs)
        call.outputs, call.relu = self.outputs, self.relu
        call.x, call.y, call.packed = x.data_ptr(), out.data_ptr(), matrix.data_ptr()
        call.skip = pointer(skip)
        run("saccade_linear_forward", call)
        return out


class ProjectedAttention:
    """SASA of what `project` gives: queries, keys (unless there are none) and values side by side.

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
        out, call = x.new_empty(B, H, W, C), copied(self.call)
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
    """x + mix(QnA(LayerNorm(x))), of stride 1; `project` gives values and scores side by side."""

    def __init__(self, norm: Norm, project: PixelProduct, mix: PixelProduct, rpe: Tensor,
                 ws: Tensor | None, padding: int):  # fmt: skip
        self.norm, self.project, self.mix = NormOfMap(norm), project, mix
        (k, _, L, h), V = rpe.shape, mix.inputs
        tables = [t for t in (rpe, ws) if t is not None]  # four axes: casts may reorder them
        self.tables = FromWeights(tables, lambda _: tuple(t.contiguous() for t in tables), Memory())
        self.call = Qna(TYPES[torch.float32], 1, 0, h, V // h, L)
        self.call.window, self.call.stride, self.call.padding, self.call.fold = k, 1, padding, 1

    def takes(self, x: Float[Tensor, "B H W C"]) -> bool:
        return x.numel() > 0

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        vs, (B, H, W, _) = self.project(self.norm(x)), x.shape
        V, J = self.mix.inputs, self.project.outputs
        z, call = x.new_empty(B, H, W, V), copied(self.call)
        call.threads, call.B, call.H, call.W = torch.get_num_threads(), B, H, W
        call.Ho, call.Wo = H, W
        rpe, *ws = self.tables(None)
        call.bias, call.weight = rpe.data_ptr(), pointer(*ws) if ws else None
        call.s = Map(vs.data_ptr() + 4 * V, H * W * J, 1, W * J, J)
        call.v = Map(vs.data_ptr(), H * W * J, 1, W * J, J)
        call.out = Map(z.data_ptr(), H * W * V, 1, W * V, V)
        run("saccade_qna_forward", call)
        return self.mix(z, x)
