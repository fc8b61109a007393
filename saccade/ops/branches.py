"""LinGlo's feed-forward with RP-CPE in training: a sum of branches, each normalised by the batch.

    h = x W1 + b1
    z_i = h * k_i             depth-wise 3x3, one for each branch
    u = sum over i of gamma_i (z_i - mean z_i) / sqrt(var z_i + eps) + beta_i     (+ h, with skip)
    y = gelu(u) W2 + b2

Mean and variance are over all pixels of the batch, zeros around each map, as BatchNorm takes them.

`composed` is these equations in PyTorch. `native` never computes a z_i: their mean and variance
follow from statistics of h, and with them all branches together are one 3x3 convolution, whose
weights change from batch to batch. With m and S the mean and covariance of the nine places of a
window of h,

    mean z_i = k_i . m      var z_i = k_i^T S k_i
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.native.branches import NATIVE
from saccade.ops.operator import Operator
from saccade.ops.precision import autocasts, no_autocast


class BranchWeights(NamedTuple):
    """The letters of the equation, each matrix as `nn.Linear` keeps it (out, in)."""

    w1: Float[Tensor, "J C"]
    b1: Float[Tensor, "J"]
    k: Float[Tensor, "n J 1 3 3"]
    gamma: Float[Tensor, "n J"]
    beta: Float[Tensor, "n J"]
    w2: Float[Tensor, "D J"]
    b2: Float[Tensor, "D"]


def feed_branches(
    x: Float[Tensor, "B H W C"],
    w: BranchWeights,
    eps: float,
    skip: bool = True,
    tanh: bool = False,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B H W D"], Float[Tensor, "2 n J"]] | None:
    """The output, and mean and variance of every branch, by a kernel that also has a backward.

    Returns:
        None where no kernel takes the call; it is then faster to call the modules one by one
    """
    if x.device.type == "cpu" and autocasts(x.device) and x.dtype != torch.float64:
        # In fp32: in bf16, torch's branches cost more time than its products save, and are less
        # exact.
        inputs = [t.float() for t in (x, *w)]
        dtype = torch.get_autocast_dtype("cpu")
        with no_autocast(x.device):
            results = FEED_BRANCHES.with_residuals(*inputs, eps, skip, tanh, backend=backend)
        return None if results is None else (results[0].to(dtype), results[-1])
    results = FEED_BRANCHES.with_residuals(x, *w, eps, skip, tanh, backend=backend)
    return None if results is None else (results[0], results[-1])


def composed(
    x: Float[Tensor, "B H W C"], w1: Float[Tensor, "J C"], b1: Float[Tensor, "J"],
    k: Float[Tensor, "n J 1 3 3"], gamma: Float[Tensor, "n J"], beta: Float[Tensor, "n J"],
    w2: Float[Tensor, "D J"], b2: Float[Tensor, "D"], eps: float, skip: bool, tanh: bool,
) -> Float[Tensor, "B H W D"]:  # fmt: skip
    """The same, equation by equation."""
    h = F.linear(x, w1, b1).permute(0, 3, 1, 2)
    terms = [h] if skip else []
    for kernel, scale, shift in zip(k.unbind(), gamma.unbind(), beta.unbind(), strict=True):
        z = F.conv2d(h, kernel, padding=1, groups=len(kernel))
        mean = z.mean((0, 2, 3), keepdim=True)
        var = (z - mean).square().mean((0, 2, 3), keepdim=True)
        z = (z - mean) * (var + eps).rsqrt()
        terms.append(z * scale[:, None, None] + shift[:, None, None])
    u = sum(terms[1:], terms[0]).permute(0, 2, 3, 1)
    return F.linear(F.gelu(u, approximate="tanh" if tanh else "none"), w2, b2)


def _check(x, w1, b1, k, *rest) -> None:
    if not len(k):
        raise ValueError("feed_branches: at least one branch is needed, got none")


def _flops(x: Any, w1: Any, b1: Any, k: Any, gamma: Any, beta: Any, w2: Any, *_: Any) -> int:
    B, H, W, C = x
    return 2 * B * H * W * w1[0] * (C + w2[0] + 9 * k[0])


FEED_BRANCHES = Operator(
    "feed_branches",
    plain={"composed": composed},
    kernels={"native": NATIVE},
    check=_check,
    output=lambda x, w1, b1, k, gamma, beta, w2, *_: x.new_empty(*x.shape[:3], len(w2)),
    flops=_flops,
    keeps=3,
)
