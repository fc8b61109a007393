"""First and second moments of a map's 3x3 windows, zeros around it, channel by channel.

    M = mean over pixels p of w w^T,     w = (h(p + o) for the nine places o of a 3x3, and 1)

By them the mean and the variance of any depth-wise 3x3 k of the map are known before it is computed:

    mean of h * k = k . M[:9, 9]     mean of (h * k)^2 = k^T M[:9, :9] k
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.moments import NATIVE
from saccade.ops.operator import Operator


def moments(h: Float[Tensor, "B H W C"], backend: str = "auto") -> Float[Tensor, "C 10 10"]:
    """The ten by ten moments of each channel's windows, in float64."""
    return MOMENTS(h, backend=backend)


fx.wrap("moments")  # one node to torch.fx


def in_one_pass(h: Float[Tensor, "B H W C"]) -> bool:
    """Whether a kernel takes such a map; else convolutions are cheaper than their moments."""
    return MOMENTS.choose((h,)) == "native"


def windows(h: Float[Tensor, "B H W C"]) -> Float[Tensor, "C 10 10"]:
    """The same, from all windows."""
    B, H, W, C = h.shape
    padded = F.pad(h.double(), (0, 0, 1, 1, 1, 1))
    w = torch.stack([padded[:, i : i + H, j : j + W] for i in range(3) for j in range(3)], -1)
    w = F.pad(w, (0, 1), value=1.0).flatten(0, 2).transpose(0, 1)  # C pixels 10
    return w.mT @ w / (B * H * W)


def _check(h: Tensor) -> None:
    if h.ndim != 4:
        raise ValueError(f"moments: h is B H W C, got {tuple(h.shape)}")


def _flops(h: Any) -> int:
    return 2 * 13 * math.prod(h)  # products of places depend on their difference: 13 of them


MOMENTS = Operator(
    "moments",
    plain={"windows": windows},
    kernels={"native": NATIVE},
    check=_check,
    output=lambda h: h.new_empty(h.shape[3], 10, 10, dtype=torch.float64),
    flops=_flops,
)
