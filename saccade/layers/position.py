"""Positions: RP-CPE and its ablations (LinGlo, 3.2 and Table 6), and absolute embeddings."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.branches import DepthwiseBranch, Kernel3x3, frozen
from saccade.layers.layout import MapLayer
from saccade.layers.untouched import depthwise3x3, readable, untouched
from saccade.ops.precision import wide


@readable
class RPCPE(MapLayer):
    """Residual parallel conditional positional encoding: y = x + sum of depth-wise 3x3 branches.

    Each branch is normalised (BatchNorm), or with `norm=False` none is. A sum of convolutions is
    the convolution by the summed kernel, and the skip adds one to its centre. So one 3x3 is all
    that runs; while BatchNorm gathers statistics, another for each batch (inside `FeedForward`, see
    `layers/branches.py`). `fuse` makes it permanent and drops the branches.

    `layout`, `size` and `prefix` are those of `MapLayer`; class tokens pass as they are. Pixels of
    a padding mask count as zeros, as those beyond the border do.
    """

    own = "NCHW"
    takes_prefix = True

    whole = True  # sharding must not split it: its parts' parameters are read without calling them

    def __init__(
        self,
        dim: int,
        branches: int = 4,
        skip: bool = True,
        norm: bool = True,
        *,
        layout: str | None = None,
        size: Sequence[int] | None = None,
        prefix: int = 0,
    ):
        super().__init__()
        self.place(dim, layout, size, prefix)
        if branches < 1:
            raise ValueError(f"RPCPE: at least one branch is needed, got {branches=}")
        self.skip = skip
        self.branches = nn.ModuleList(DepthwiseBranch(dim, norm) for _ in range(branches))
        self.fused: nn.Conv2d | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Branches start apart (they are summed, so equal starts would stay equal), each at the
        # usual spread of a depth-wise 3x3 divided among them.
        std = (2 / 9 / max(len(self.branches), 1)) ** 0.5
        for branch in self._branches():
            nn.init.normal_(branch.conv.weight, std=std)

    def _branches(self) -> list[DepthwiseBranch]:
        return [cast(DepthwiseBranch, branch) for branch in self.branches]

    def kernel(self) -> Kernel3x3:
        """All branches and the skip as one 3x3, at the running statistics; or what `fuse` left."""
        if self.fused is not None:
            return self.fused.weight, cast(Tensor, self.fused.bias)
        kernels, biases = zip(*(branch.kernel() for branch in self._branches()), strict=True)
        return self._with_skip(sum(kernels[1:], kernels[0])), sum(biases[1:], biases[0])

    def _with_skip(self, weight: Float[Tensor, "C 1 3 3"]) -> Float[Tensor, "C 1 3 3"]:
        return weight + F.pad(weight.new_ones(1, 1), (1, 1, 1, 1)) if self.skip else weight

    @torch.no_grad()
    def fuse(self) -> "RPCPE":
        """Replace the branches by the merged 3x3 for good. In eval mode only; may be repeated."""
        if self.training:
            raise RuntimeError("RPCPE.fuse: BatchNorm statistics still move; call eval() first")
        if self.fused is None:
            weight, bias = self.kernel()
            self.fused = nn.Conv2d(self.dim, self.dim, 3, padding=1, groups=self.dim, device="meta")
            self.fused.weight, self.fused.bias = nn.Parameter(weight), nn.Parameter(bias)
            self.fused.eval()
            self.branches = nn.ModuleList()
        return self

    def one(self, x: Float[Tensor, "B *map"]) -> Kernel3x3 | None:
        """The merged 3x3 for such a map, if it is the same for all maps.

        None while BatchNorm gathers statistics, or where a part must be called as a module.
        """
        return self.merged_kernel() if untouched(x, self) else None

    def merged_kernel(self) -> Kernel3x3 | None:
        """The same for one that is known to be untouched."""
        fused = self.fused
        if fused is not None:
            return self.kernel() if depthwise3x3(fused) and fused.bias is not None else None
        return self.kernel() if all(map(frozen, self.branches)) else None

    def on_prefix(
        self, head: Float[Tensor, "B p C"], x: Tensor, padding: Tensor | None
    ) -> Float[Tensor, "B p C"]:
        return head

    def on_map(
        self, x: Float[Tensor, "B C H W"], padding: Bool[Tensor, "B H W"] | None = None
    ) -> Float[Tensor, "B C H W"]:
        if padding is not None:
            x = x.masked_fill(padding[:, None], 0)
        if self.fused is not None:
            return self.fused(x)
        one = self.one(x)
        if one is None:
            y = sum(branch(x) for branch in self.branches)
            return x + y if self.skip else y
        return F.conv2d(x, *one, padding=1, groups=self.dim)


# The rows of LinGlo's Table 6.
CPE = {
    "cpe": partial(RPCPE, branches=1, skip=False),
    "r-cpe": partial(RPCPE, branches=1, skip=True),
    "p-cpe": partial(RPCPE, branches=4, skip=False),
    "rp-cpe": partial(RPCPE, branches=4, skip=True),
}


class AbsolutePosition(nn.Module):
    """Add one learned vector per place, resized when the map has another size than `grid`."""

    undecayed = ("table",)

    def __init__(self, dim: int, grid: tuple[int, int]):
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, dim, *grid))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        # At its own size resizing changes nothing; a branch here would hinder exporters.
        table = self.table.to(wide(self.table.dtype))  # torch resizes no bfloat16 on CPU
        table = F.interpolate(table, size=x.shape[2:], mode="bicubic", antialias=True)
        return x + table.to(self.table.dtype)
