"""Parallel depth-wise 3x3 branches with BatchNorm, merged into one 3x3 convolution.

    z_i = h * k_i      y = sum over i of gamma_i (z_i - mean z_i) / sqrt(var z_i + eps) + beta_i

In evaluation the statistics are constants, and the sum is one 3x3 convolution. In training they
depend on the batch; `saccade.ops.branches` then computes the merged 3x3 of each batch.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.norm import is_scale_and_shift, scale_and_shift
from saccade.layers.untouched import depthwise3x3, readable

Kernel3x3 = tuple[Float[Tensor, "C 1 3 3"], Float[Tensor, "C"]]


@readable
class DepthwiseBranch(nn.Module):
    """One depth-wise 3x3 without bias, optionally followed by BatchNorm.

    Given weights that were trained without a norm, `load_state_dict` drops it.
    """

    def __init__(self, dim: int, norm: bool):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)
        self.norm = nn.BatchNorm2d(dim) if norm else None

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        self.fit(prefix, state_dict)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def fit(self, prefix: str, names: Iterable[str]) -> None:
        """Drop the norm if weights of these names have the convolution without it."""
        if f"{prefix}conv.weight" in names and f"{prefix}norm.weight" not in names:
            self.norm = None

    def kernel(self) -> Kernel3x3:
        """The branch as weight and bias, its BatchNorm folded in at the running statistics."""
        weight, bias = self.conv.weight, self.conv.bias
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        if self.norm is None:
            return weight, bias
        scale, shift = scale_and_shift(self.norm)
        return weight * scale[:, None, None, None], shift + bias * scale

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        x = self.conv(x)
        return x if self.norm is None else self.norm(x)


def fit_norms(net: nn.Module, names: Iterable[str]) -> None:
    """Drop the norms of branches whose weights were trained without a norm, by the weights' names.

    Call it before an optimiser is made; `load_state_dict` does it by itself.
    """
    for path, module in net.named_modules():
        if isinstance(module, DepthwiseBranch):
            module.fit(f"{path}." if path else "", names)


def frozen(branch: nn.Module) -> bool:
    """Whether the branch is the same 3x3 convolution for every batch."""
    if type(branch) is not DepthwiseBranch or not depthwise3x3(branch.conv):
        return False
    return branch.norm is None or is_scale_and_shift(branch.norm, len(branch.conv.weight))


def _gathers(branch: nn.Module) -> bool:
    """Whether it is normalised by the batch's own statistics, in the usual way."""
    if type(branch) is not DepthwiseBranch or not depthwise3x3(branch.conv):
        return False
    norm = branch.norm
    if norm is None or branch.conv.bias is not None or norm.weight is None or norm.bias is None:
        return False
    if (norm.running_mean is None) != (norm.running_var is None):
        return False
    return norm.momentum is not None and (norm.training or norm.running_mean is None)


class BatchLetters(NamedTuple):
    """The parameters of branches normalised over the batch, named as in `saccade.ops.branches`."""

    k: Float[Tensor, "n C 1 3 3"]
    gamma: Float[Tensor, "n C"]
    beta: Float[Tensor, "n C"]
    eps: float


def letters_of_batch(branches: Sequence[nn.Module]) -> BatchLetters | None:
    """The parameters of plain branches that gather batch statistics; None for other branches."""
    if not all(map(_gathers, branches)):
        return None
    norms = _norms(branches)
    if len({norm.eps for norm in norms}) > 1:
        return None
    k = torch.stack([cast(DepthwiseBranch, branch).conv.weight for branch in branches])
    gamma, beta = (torch.stack([getattr(n, name) for n in norms]) for name in ("weight", "bias"))
    return BatchLetters(k, gamma, beta, norms[0].eps)


@torch.no_grad()
def remember(
    branches: Sequence[nn.Module], statistics: Float[Tensor, "2 n C"], pixels: int
) -> None:
    """Update running statistics as BatchNorm does, with the unbiased variance."""
    means, variances = statistics.unbind()
    variances = variances * (pixels / (pixels - 1))
    counts, moves = [], {}
    for norm, *new in zip(_norms(branches), means.unbind(), variances.unbind(), strict=True):
        if not norm.training or not norm.track_running_stats:
            continue
        buffers = (
            norm._buffers
        )  # four norms a layer, so many layers: read without nn.Module's search
        count = buffers["num_batches_tracked"]
        if count is not None:
            counts.append(count)
        running = buffers["running_mean"], buffers["running_var"]
        if running[0] is not None:
            old, fresh = moves.setdefault(cast(float, norm.momentum), ([], []))
            old += running
            fresh += new
    if counts:
        torch._foreach_add_(counts, 1)
    for momentum, (old, fresh) in moves.items():
        torch._foreach_lerp_(
            old, [t.to(o.dtype) for t, o in zip(fresh, old, strict=True)], momentum
        )


def _norms(branches: Sequence[nn.Module]) -> list[nn.BatchNorm2d]:
    return [cast(nn.BatchNorm2d, branch.norm) for branch in branches]
