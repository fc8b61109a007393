"""What SASA's tables count as FLOPs, by the convention that explains most of their cells.

A network's work is listed by one pass on the meta device. A `Convention` then says what of it
counts, and how often:

    pairs      of pixels that attention compares: all k^2 of a window, or those inside the map
    taps       of a convolution: all, or those inside the map
    positions  q . r: for every pair, by rows and columns apart ("axes"), or not at all
    softmax    FLOPs for each weight of each head
    norms      FLOPs for each entry of a normed map
    single     activations, pools and sums (of maps, of q . k and q . r): one each, or none
    mixtures   m of the attention stem, which the paper does not print

`benchmarks/sasa_flops.py` tries 4200 of them. 13 explain 20 of the 22 networks of Tables 1, 3, 4, 6
and 7, which none exceeds, all with pairs inside the map; counting all pairs, as a border of zeros
would have it, none explains more than 17. `BEST` is the one of the 13 with five mixtures, as our
stem has; most others count the softmax too and have three or four. All miss q . r alone (Table 6).
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem, Mixture
from saccade.models.sasa import Bottleneck


class Convention(NamedTuple):
    """What counts as a FLOP, beside two for each multiply-add."""

    pairs: str
    taps: str
    positions: str
    softmax: int
    norms: int
    single: bool
    mixtures: int


PRODUCTS = Convention("all", "all", "pairs", 0, 0, False, 5)
"""Convolutions, projections and attention over whole windows, and nothing else."""
BEST = Convention("inside", "all", "pairs", 0, 4, True, 5)
"""Pixels outside the map left out; norms as (x - mean) / std * gain + bias, four for each entry."""


def flops(model: nn.Module, side: int, how: Convention = BEST) -> int:
    """The FLOPs of a network on the meta device for one square image, by a convention."""
    return total(work(model, side), how)


def total(parts: Counter, how: Convention) -> int:
    """The FLOPs of a network's work, by a convention."""
    pairs = how.pairs
    macs = parts["conv", how.taps] + parts["linear"] + parts["product", pairs]
    macs += how.mixtures * parts["mixture"]
    if how.positions != "none":
        macs += parts["position", pairs if how.positions == "pairs" else "axes"]
    count = 2 * macs + how.softmax * parts["weight", pairs] + how.norms * parts["norm"]
    return count + how.single * (parts["single"] + parts["sum", pairs])


def inside(size: int, window: int, stride: int = 1, pad: int | None = None) -> int:
    """Places along one side, over all windows, that lie on the map."""
    pad = window // 2 if pad is None else pad
    firsts = range(-pad, size + pad - window + 1, stride)
    return sum(min(at + window, size) - max(at, 0) for at in firsts)


def work(net: nn.Module, side: int) -> Counter:
    """What a network on the meta device computes for one square image: numbers by name."""
    parts: Counter = Counter()
    hooks = [
        module.register_forward_hook(_counting(count, parts))
        for module in net.modules()
        for kind, count in KINDS.items()
        if isinstance(module, kind)
    ]
    training = net.training
    try:
        with torch.no_grad():
            net.eval()(torch.empty(1, 3, side, side, device="meta"))
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return parts


def _counting(count: Callable[..., dict[Any, int]], parts: Counter) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        parts.update(count(module, inputs[0].shape, output.shape))

    return hook


def _conv(module: Any, before: torch.Size, after: torch.Size) -> dict[Any, int]:
    entries, (height, width) = module.weight.numel(), module.kernel_size
    geometry = zip(before[2:], module.kernel_size, module.stride, module.padding, strict=True)
    rows, columns = (inside(*one) for one in geometry)
    return {
        ("conv", "all"): entries * after[2] * after[3],
        ("conv", "inside"): entries // (height * width) * rows * columns,
    }


def _linear(module: Any, before: torch.Size, after: torch.Size) -> dict[Any, int]:
    return {"linear": module.weight.numel() * math.prod(after[:-1])}


def _attention(module: Any, before: torch.Size, after: torch.Size) -> dict[Any, int]:
    (H, W), k, C = before[2:], module.window, module.value.out_channels
    content, position = module.key is not None, module.row is not None
    parts: dict[Any, int] = {("position", "axes"): position * C * H * W * k}
    for name, pairs in (("all", H * W * k * k), ("inside", inside(H, k) * inside(W, k))):
        parts["product", name] = C * pairs * (1 + content)  # the weighted sum, and q . k
        parts["position", name] = C * pairs * position
        parts["weight", name] = module.heads * pairs
        parts["sum", name] = module.heads * pairs * (content and position)
    return {**parts, "single": C * H * W * (module.stride == 2)}


def _stem(module: Any, before: torch.Size, after: torch.Size) -> dict[Any, int]:
    (C, H, W), D = before[1:], module.query.out_channels
    pairs = H * W * module.side**2  # blocks fill the image: none lies outside
    parts: dict[Any, int] = {("position", "axes"): D * H * W * (2 * module.side - 1)}
    for name in ("all", "inside"):
        parts["product", name] = 2 * D * pairs
        parts["position", name] = D * pairs
        parts["weight", name] = parts["sum", name] = module.heads * pairs
    mixed = isinstance(module.value, Mixture)
    return {**parts, "mixture": mixed * D * (C + 1) * H * W, "single": D * H * W}


KINDS: dict[type, Callable[..., dict[Any, int]]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    StandAloneAttention: _attention,
    AttentionStem: _stem,
    nn.BatchNorm2d: lambda module, before, after: {"norm": after.numel()},
    nn.ReLU: lambda module, before, after: {"single": after.numel()},
    nn.MaxPool2d: lambda module, before, after: {"single": 9 * after.numel()},
    Bottleneck: lambda module, before, after: {"single": after.numel()},  # the sum
}
