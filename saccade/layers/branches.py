"""Parallel depth-wise 3x3 branches with BatchNorm, and the one 3x3 that they are for a batch.

    z_i = h * k_i      y = sum over i of gamma_i (z_i - mean z_i) / sqrt(var z_i + eps) + beta_i

In evaluation the statistics are known numbers, and all of it is one 3x3. In training they depend on
the batch, but linearly and quadratically on k_i: with m the nine means of h's places and S their
covariance (`saccade.ops.moments`, one pass over h),

    mean z_i = k_i . m      var z_i = k_i^T S k_i

So it is one 3x3 again, another for each batch, and no z_i is ever computed.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.norm import is_scale_and_shift, scale_and_shift
from saccade.layers.untouched import depthwise3x3, readable
from saccade.ops.moments import in_one_pass, moments

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

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        self.fit(prefix, state_dict)
        super()._load_from_state_dict(state_dict, prefix, *rest)

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
    """Drop the norms of branches that weights of these names were trained without.

    Before an optimiser is made for them; `load_state_dict` does it by itself.
    """
    for path, module in net.named_modules():
        if isinstance(module, DepthwiseBranch):
            module.fit(f"{path}." if path else "", names)


def frozen(branch: nn.Module) -> bool:
    """Whether it is one 3x3, the same for every batch."""
    if type(branch) is not DepthwiseBranch or not depthwise3x3(branch.conv):
        return False
    return branch.norm is None or is_scale_and_shift(branch.norm)


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


def one_pass(branches: Sequence[nn.Module], h: Float[Tensor, "B H W C"]) -> bool:
    """Whether `kernel_of_batch` is how to compute them; else they are called one by one."""
    return (
        all(map(_gathers, branches))
        and not torch.jit.is_tracing()
        and h.ndim == 4
        and h.shape[0] * h.shape[1] * h.shape[2] > 1  # of one pixel BatchNorm says what is wrong
        and in_one_pass(h)
    )


def kernel_of_batch(
    branches: Sequence[DepthwiseBranch], h: Float[Tensor, "B H W C"], backend: str = "auto"
) -> Kernel3x3:
    """All branches as weight and bias, normalised over this map; moves their running statistics."""
    norms = [cast(nn.BatchNorm2d, branch.norm) for branch in branches]
    M = moments(h, backend)
    k = torch.stack([branch.conv.weight for branch in branches], 1).flatten(2).to(M.dtype)  # C n 9
    m = M[:, :9, 9:]
    mean = (k @ m).squeeze(2)
    var = ((k @ (M[:, :9, :9] - m @ m.mT)) * k).sum(2).clamp_min(0)  # C n
    _remember(norms, mean.detach(), var.detach(), h.shape[0] * h.shape[1] * h.shape[2])
    gamma, beta = (torch.stack(t, 1) for t in ([n.weight for n in norms], [n.bias for n in norms]))
    scale = gamma * (var + k.new_tensor([norm.eps for norm in norms])).rsqrt()
    weight = (scale[..., None] * k).sum(1).view(-1, 1, 3, 3)
    return weight.to(h.dtype), (beta - mean * scale).sum(1).to(h.dtype)


@torch.no_grad()
def _remember(
    norms: Sequence[nn.BatchNorm2d], mean: Float[Tensor, "C n"], var: Float[Tensor, "C n"], n: int
) -> None:
    """Running statistics as BatchNorm moves them: the variance without bias."""
    var = var * (n / (n - 1))
    for norm, new_mean, new_var in zip(norms, mean.unbind(1), var.unbind(1), strict=True):
        if not norm.training or not norm.track_running_stats:
            continue
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        for running, new in ((norm.running_mean, new_mean), (norm.running_var, new_var)):
            if running is not None:
                running.lerp_(new.to(running.dtype), cast(float, norm.momentum))
