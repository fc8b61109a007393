"""RetinaNet's feature pyramid, and its heads, which run over all levels of the pyramid.

Both come as convolutions and as SASA's surgery of them (appendix A.3): each 3 x 3 convolution
becomes stand-alone attention of the same width, k = 7, 8 heads; where it was strided, the mean of
each 2 x 2 pixels follows; and a head ends in a pointwise convolution, which mixes the attention
heads. Places beyond a map's edge are left out of the softmax (`border="mask"`), as in SASA's
backbones; with "zero", they get a share of every softmax.

New layers are drawn as RetinaNet draws them, or all by Xavier (LinGlo, section 4.2). Queries and
keys of attention are drawn from N(0, 0.01) either way. What they see are sums of a backbone's maps
that nothing normalises: drawn for inputs of unit size, as inside a ResNet, their logits spread over
20 and more at the start, so that each softmax takes one pixel, passes no gradient and stays so.

So drawn, every window of 49 pixels begins as their mean, layer after layer, and nothing above knows
where it is. With `locality` above 0 each attention head looks at one place of its own first, beside
the pixel, whatever the size of what it sees (`StandAloneAttention._look`): a layer then begins as a
convolution of shifted channels, and learns from there.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.conv import Conv3x3
from saccade.layers.sasa import StandAloneAttention
from saccade.ops.sasa import BORDERS

KINDS = ("conv", "attention")
COARSE = ("C5", "P5")
INITS = ("retinanet", "xavier")


def _spatial(
    kind: str,
    dim: int,
    stride: int = 1,
    bias: bool = True,
    inward: int | None = None,
    border: str = "mask",
    locality: float = 0.0,
) -> nn.Module:
    """A 3 x 3 convolution, or what takes its place; from `inward` channels, if these differ."""
    inward = dim if inward is None else inward
    if kind == "conv":
        return Conv3x3(inward, dim, stride, bias)
    return StandAloneAttention(inward, dim, stride=stride, border=border, locality=locality)


def _check(where: str, kind: str, init: str, border: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"{where}: kind must be one of {KINDS}, got {kind=}")
    if init not in INITS:
        raise ValueError(f"{where}: init must be one of {INITS}, got {init=}")
    if border not in BORDERS:
        raise ValueError(f"{where}: border must be one of {BORDERS}, got {border=}")


def draw(module: nn.Module, how: Callable[[Tensor], Tensor] | None) -> None:
    """Draw the weights of a module's convolutions and attention layers, with zero biases."""
    if isinstance(module, StandAloneAttention):
        for conv in (module.query, module.key):
            if not module.locality:
                nn.init.normal_(conv.weight, std=0.01)
        if how is not None:
            how(module.value.weight)
    elif isinstance(module, nn.Conv2d) and how is not None:
        how(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def top_down(maps: list[Tensor]) -> list[Tensor]:
    """Add to each map, finest first, all coarser ones, enlarged by repeating pixels."""
    for i in reversed(range(len(maps) - 1)):
        maps[i] = maps[i] + F.interpolate(maps[i + 1], size=maps[i].shape[2:], mode="nearest")
    return maps


class FeaturePyramid(nn.Module):
    """From a backbone's maps, finest first, to maps of one width: those levels, and coarser ones.

    With maps C3 to C5 at strides 8, 16, 32 and two coarser it gives P3 to P7, at strides 8 to 128.

    coarse    what P6 is made from: "P5" (SASA), or "C5", the backbone's own map (LinGlo)
    norm      BatchNorm on every level, for what reads it
    locality  how narrowly attention looks at first; 0: as the paper has it
    coarser   how many levels are coarser than the backbone's last map
    """

    def __init__(
        self,
        widths: Sequence[int],
        dim: int = 256,
        kind: str = "conv",
        coarse: str = "P5",
        init: str = "retinanet",
        border: str = "mask",
        norm: bool = False,
        locality: float = 0.0,
        coarser: int = 2,
    ):
        super().__init__()
        _check("FeaturePyramid", kind, init, border)
        if coarse not in COARSE:
            raise ValueError(f"FeaturePyramid: coarse must be one of {COARSE}, got {coarse=}")
        self.lateral = nn.ModuleList(nn.Conv2d(width, dim, 1) for width in widths)
        spatial = partial(_spatial, kind, dim, border=border, locality=locality)
        self.smooth = nn.ModuleList(spatial() for _ in widths)
        first = widths[-1] if coarse == "C5" else dim
        inwards = (first, *[dim] * (coarser - 1))
        self.coarser = nn.ModuleList(spatial(stride=2, inward=inward) for inward in inwards)
        self.levels = len(widths) + len(self.coarser)
        self.norm = nn.ModuleList(
            nn.BatchNorm2d(dim) if norm else nn.Identity() for _ in range(self.levels)
        )
        self.dim, self.coarse, self.init = dim, coarse, init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        xavier = self.init == "xavier"
        how = nn.init.xavier_uniform_ if xavier else partial(nn.init.kaiming_uniform_, a=1)
        for module in (*self.lateral, *self.smooth, *self.coarser):
            draw(module, how if xavier or isinstance(module, nn.Conv2d) else None)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        if len(maps) != len(self.lateral):
            raise ValueError(
                f"FeaturePyramid: built for {len(self.lateral)} maps, got {len(maps)} of them"
            )
        merged = top_down([lateral(x) for lateral, x in zip(self.lateral, maps, strict=True)])
        levels = [smooth(x) for smooth, x in zip(self.smooth, merged, strict=True)]
        first, *others = self.coarser
        levels.append(first(maps[-1] if self.coarse == "C5" else levels[-1]))
        for coarser in others:
            levels.append(coarser(F.relu(levels[-1])))
        return [norm(x) for norm, x in zip(self.norm, levels, strict=True)]


class DenseHead(nn.Module):
    """The same few layers for every level of a pyramid; only BatchNorm is separate for each level.

    out    channels a pixel: anchors x classes, or anchors x 4
    norm   BatchNorm after every layer but the last, one for each level; else the layer's own bias
    prior  where every sigmoid starts, by the last bias, so that rare objects do not drown in the
           background's loss
    locality  how narrowly attention looks at first; 0: as the paper has it
    """

    def __init__(
        self,
        out: int,
        dim: int = 256,
        depth: int = 4,
        levels: int = 5,
        kind: str = "conv",
        prior: float | None = None,
        norm: bool = True,
        init: str = "retinanet",
        border: str = "mask",
        locality: float = 0.0,
    ):
        super().__init__()
        _check("DenseHead", kind, init, border)
        spatial = partial(_spatial, kind, dim, border=border, locality=locality)
        self.mix = nn.ModuleList(spatial(bias=not norm) for _ in range(depth))
        self.norm = nn.ModuleList(
            nn.ModuleList(nn.BatchNorm2d(dim) if norm else nn.Identity() for _ in range(levels))
            for _ in range(depth)
        )
        if kind == "conv":
            self.last: nn.Module = Conv3x3(dim, out)
        else:
            self.last = nn.Sequential(spatial(), nn.Conv2d(dim, out, 1))
        self.prior, self.init = prior, init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Convolutions and Wv from N(0, 0.01), as in RetinaNet, or by Xavier."""
        xavier = self.init == "xavier"
        how = nn.init.xavier_uniform_ if xavier else partial(nn.init.normal_, std=0.01)
        ends = self.last if isinstance(self.last, nn.Sequential) else (self.last,)
        for module in (*self.mix, *ends):
            draw(module, how)
        *_, last = ends
        if self.prior is not None and isinstance(last, nn.Conv2d) and last.bias is not None:
            nn.init.constant_(last.bias, -math.log((1 - self.prior) / self.prior))

    def run(self, x: Float[Tensor, "B C H W"], level: int) -> Float[Tensor, "B D H W"]:
        for mix, norm in zip(self.mix, self.norm, strict=True):
            x = F.relu(cast(nn.ModuleList, norm)[level](mix(x)))
        return self.last(x)

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        return [self.run(x, i) for i, x in enumerate(levels)]
