"""RetinaNet between backbone and boxes: a feature pyramid, and heads that run over all its levels.

Both come as convolutions and as SASA's surgery of them (appendix A.3): each 3 x 3 convolution
becomes stand-alone attention of the same width, k = 7, 8 heads; where it was strided, the mean of
each 2 x 2 pixels follows; and a head ends in a pointwise convolution, which mixes the attention
heads that nothing mixes otherwise.
"""

import math
from collections.abc import Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.sasa import StandAloneAttention

KINDS = ("conv", "attention")


def _spatial(kind: str, dim: int, stride: int = 1, bias: bool = True) -> nn.Module:
    """A 3 x 3 convolution, or what takes its place."""
    if kind == "conv":
        return nn.Conv2d(dim, dim, 3, stride, padding=1, bias=bias)
    return StandAloneAttention(dim, stride=stride)


def _check(where: str, kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"{where}: kind must be one of {KINDS}, got {kind=}")


class FeaturePyramid(nn.Module):
    """Maps of a backbone, finest first, to maps of one width: theirs, and two coarser ones.

    With maps at strides 8, 16, 32 it gives P3 to P7, at strides 8 to 128. P6 is made from P5.
    """

    def __init__(self, widths: Sequence[int], dim: int = 256, kind: str = "conv"):
        super().__init__()
        _check("FeaturePyramid", kind)
        self.lateral = nn.ModuleList(nn.Conv2d(width, dim, 1) for width in widths)
        self.smooth = nn.ModuleList(_spatial(kind, dim) for _ in widths)
        self.coarser = nn.ModuleList(_spatial(kind, dim, stride=2) for _ in range(2))
        self.levels = len(widths) + len(self.coarser)
        self.dim = dim
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for conv in (*self.lateral, *self.smooth, *self.coarser):
            if isinstance(conv, nn.Conv2d):
                nn.init.kaiming_uniform_(conv.weight, a=1)
                if conv.bias is not None:
                    nn.init.zeros_(conv.bias)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        if len(maps) != len(self.lateral):
            raise ValueError(
                f"FeaturePyramid: built for {len(self.lateral)} maps, got {len(maps)} of them"
            )
        merged = [lateral(x) for lateral, x in zip(self.lateral, maps, strict=True)]
        for i in reversed(range(len(merged) - 1)):
            size = merged[i].shape[2:]
            merged[i] = merged[i] + F.interpolate(merged[i + 1], size=size, mode="nearest")
        levels = [smooth(x) for smooth, x in zip(self.smooth, merged, strict=True)]
        for i, coarser in enumerate(self.coarser):
            levels.append(coarser(F.relu(levels[-1]) if i else levels[-1]))
        return levels


class DenseHead(nn.Module):
    """The same few layers over every level of a pyramid; only BatchNorm knows the level.

    `out` channels a pixel: anchors x classes, or anchors x 4. With `prior`, the last bias makes
    every sigmoid start there, so that rare objects do not drown in the background's loss.
    """

    def __init__(
        self,
        out: int,
        dim: int = 256,
        depth: int = 4,
        levels: int = 5,
        kind: str = "conv",
        prior: float | None = None,
    ):
        super().__init__()
        _check("DenseHead", kind)
        self.mix = nn.ModuleList(_spatial(kind, dim, bias=False) for _ in range(depth))
        self.norm = nn.ModuleList(
            nn.ModuleList(nn.BatchNorm2d(dim) for _ in range(levels)) for _ in range(depth)
        )
        if kind == "conv":
            self.last: nn.Module = nn.Conv2d(dim, out, 3, padding=1)
        else:
            self.last = nn.Sequential(StandAloneAttention(dim), nn.Conv2d(dim, out, 1))
        self.prior = prior
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Convolutions and Wv from N(0, 0.01), as in RetinaNet."""
        for module in self.modules():
            if isinstance(module, StandAloneAttention):
                nn.init.normal_(module.value.weight, std=0.01)
        last = self.last[1] if isinstance(self.last, nn.Sequential) else self.last
        for conv in (*self.mix, last):
            if isinstance(conv, nn.Conv2d):
                nn.init.normal_(conv.weight, std=0.01)
                if conv.bias is not None:
                    nn.init.zeros_(conv.bias)
        if self.prior is not None and isinstance(last, nn.Conv2d) and last.bias is not None:
            nn.init.constant_(last.bias, -math.log((1 - self.prior) / self.prior))

    def run(self, x: Float[Tensor, "B C H W"], level: int) -> Float[Tensor, "B D H W"]:
        for mix, norm in zip(self.mix, self.norm, strict=True):
            x = F.relu(cast(nn.ModuleList, norm)[level](mix(x)))
        return self.last(x)

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        return [self.run(x, i) for i, x in enumerate(levels)]
