"""SASA: ResNets whose 3 x 3 convolutions are replaced by self-attention over 7 x 7 windows.

Each stage repeats one bottleneck,

    ReLU(x + BN(1x1(ReLU(BN(attention(ReLU(BN(1x1(x)))))))))

and a strided one attends at full resolution and then takes the mean of each 2 x 2 pixels.
"""

import math
from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn

from saccade.layers.bottleneck import ready_bottleneck
from saccade.layers.conv import Conv1x1, Conv3x3
from saccade.layers.ready import whole
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem, ConvStem
from saccade.layers.stem import FineStem
from saccade.layers.walk import walkable
from saccade.models.backbone import Backbone, Stage, drop_rates
from saccade.paper import Claim


@walkable
class Bottleneck(nn.Module):
    """Narrow, look around by `mix`, widen, and add what came in."""

    def __init__(self, dim: int, mix: nn.Module, width: int, out: int, stride: int, drop: float):
        super().__init__()
        self.narrow = Conv1x1(dim, width, bias=False)
        self.narrow_norm = nn.BatchNorm2d(width)
        self.mix = mix
        self.mix_norm = nn.BatchNorm2d(width)
        self.widen = Conv1x1(width, out, bias=False)
        self.widen_norm = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or dim != out:
            self.shortcut = nn.Sequential(
                Conv1x1(dim, out, stride, bias=False), nn.BatchNorm2d(out)
            )
        self.act = nn.ReLU()
        self.drop = DropPath(drop) if drop else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The convolutions as ResNet draws them; attention draws its own."""
        first = self.shortcut[0] if isinstance(self.shortcut, nn.Sequential) else None
        for conv in (self.narrow, self.mix, self.widen, first):
            if isinstance(conv, nn.Conv2d):
                nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return whole(x, self, ready_bottleneck)

    def steps(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Module by module."""
        y = self.act(self.narrow_norm(self.narrow(x)))
        y = self.act(self.mix_norm(self.mix(y)))
        return self.act(self.shortcut(x) + self.drop(self.widen_norm(self.widen(y))))


# stem -> where its values come from
STEMS = {
    "attention": "mixture",
    "attention-pointwise": "pointwise",
    "attention-conv": "conv",
    "conv": None,
    "fine": None,
}


@walkable
class SASA(Backbone):
    """A ResNet of bottlenecks in which attention takes the place of convolution.

    The arguments after `drop_path` are the paper's ablations:
    stem      "attention", its values spatially aware; "attention-pointwise", "attention-conv"
              (Table 7); "conv"
    attend    the stages that attend, such as "34"; the others keep their convolutions (Table 3)
    window    k, the side of the neighbourhood (Table 4)
    position  "relative", "absolute" or "none" (Table 5)
    content   False leaves q . r as the only interaction (Table 6)
    and what the paper leaves open:
    border    "mask": a neighbourhood is a set of pixels of the map, as the text has it; "zero":
              pixels outside take a share of the softmax, with key and value zero
    shared    one table of relative positions for all heads, or one each
    scale     divide the logits by sqrt(d)
    mixtures  m of the stem's values
    and what serves images of few pixels:
    stem      "fine", a 3 x 3 convolution at full resolution
    layout    a word per stage with a letter per block, instead of `attend`: A attends, C keeps its
              convolution, ("CA", "CA", "CA")
    steps     stride of each stage; 1, 2, 2, ... if None
    locality  above 0: each head looks at one place beside its pixel first (`StandAloneAttention`)
    """

    def __init__(
        self,
        depths: Sequence[int],
        widths: Sequence[int] = (64, 128, 256, 512),
        heads: int = 8,
        expand: int = 4,
        *,
        in_chans: int = 3,
        drop_path: float = 0.0,
        stem: str = "attention",
        attend: str = "1234",
        window: int = 7,
        position: str = "relative",
        content: bool = True,
        border: str = "mask",
        shared: bool = True,
        scale: bool = False,
        mixtures: int = 5,
        locality: float = 0.0,
        stem_width: int = 64,
        stem_stride: int = 4,
        layout: Sequence[str] | None = None,
        steps: Sequence[int] | None = None,
    ):
        if stem not in STEMS:
            raise ValueError(f"SASA: stem must be one of {tuple(STEMS)}, got {stem=}")
        steps = (1, *[2] * (len(depths) - 1)) if steps is None else tuple(steps)
        if not len(depths) == len(widths) == len(steps):
            raise ValueError(
                f"SASA: one entry per stage is needed, got {depths=} {widths=} {steps=}"
            )
        if set(attend) - set("123456789"[: len(depths)]):
            raise ValueError(
                f"SASA: attend lists the stages that do, such as '34' out of 1 to {len(depths)}, "
                f"got {attend=}"
            )

        words = layout
        if words is None:
            words = ["CA"[str(i + 1) in attend] * depth for i, depth in enumerate(depths)]
        if set("".join(words)) - set("CA") or [len(word) for word in words] != list(depths):
            raise ValueError(
                f"SASA: layout has a word for each stage with a letter, A or C, for each block, "
                f"got {layout=} {depths=}"
            )
        if stem == "fine":
            stem_stride = 1

        def mix(i: int, j: int, stride: int) -> nn.Module:
            width = widths[i]
            if words[i][j] == "C":
                return Conv3x3(width, width, stride, bias=False)
            return StandAloneAttention(
                width, heads=heads, window=window, stride=stride, border=border,
                content=content, position=position, shared=shared, scale=scale, locality=locality,
            )  # fmt: skip

        values = STEMS[stem]
        if stem == "fine":
            first: nn.Module = FineStem(in_chans, stem_width)
        elif values is None:
            first = ConvStem(in_chans, stem_width, stem_stride)
        else:
            first = AttentionStem(
                in_chans, stem_width, side=stem_stride, values=values, mixtures=mixtures,
                border=border,
            )  # fmt: skip
        stages, dim = [], stem_width
        for i, rates in enumerate(drop_rates(drop_path, depths)):
            blocks, out = [], expand * widths[i]
            for j, rate in enumerate(rates):
                stride = steps[i] if j == 0 else 1
                blocks.append(Bottleneck(dim, mix(i, j, stride), widths[i], out, stride, rate))
                dim = out
            stages.append(Stage(nn.Identity(), blocks))
        super().__init__(
            first,
            stages,
            nn.Identity(),
            in_chans=in_chans,
            widths=[expand * width for width in widths],
            strides=[stem_stride * math.prod(steps[: i + 1]) for i in range(len(depths))],
        )
        self.depths, self.heads, self.expand = tuple(depths), heads, expand


LAYERS = {26: (1, 2, 4, 1), 38: (2, 3, 5, 2), 50: (3, 4, 6, 3)}
r50 = partial(SASA, depths=LAYERS[50], stem="conv")  # what the ablations start from
nano = partial(
    SASA, depths=(1, 2, 3, 1), widths=(16, 32, 64, 128), heads=4, stem="conv", stem_width=32,
    stem_stride=2,
)  # fmt: skip

VARIANTS = {
    **{f"sasa_resnet{n}": partial(SASA, depths=depths) for n, depths in LAYERS.items()},
    **{
        f"sasa_resnet{n}_convstem": partial(SASA, depths=depths, stem="conv")
        for n, depths in LAYERS.items()
    },
    **{
        f"sasa_resnet{n}_conv": partial(SASA, depths=depths, stem="conv", attend="")
        for n, depths in LAYERS.items()
    },
    "sasa_nano": nano,
    # For images of 32 pixels: convolution and attention in turn, in every stage.
    "sasa_cifar": partial(
        SASA, depths=(2, 2, 2), widths=(64, 96, 128), heads=4, expand=2, stem="fine",
        stem_width=32, attend="", steps=(2, 2, 2), layout=("CA", "CA", "CA"),
    ),
    "sasa_nano_conv": partial(nano, widths=(14, 28, 56, 112), attend=""),  # of the same size
    **{
        f"sasa_resnet50_at{stages}": partial(r50, attend=stages)
        for stages in ("234", "34", "4", "1", "12", "123")
    },
    **{f"sasa_resnet50_k{k}": partial(r50, window=k) for k in (3, 5, 9, 11)},
    "sasa_resnet50_nopos": partial(r50, position="none"),
    "sasa_resnet50_abspos": partial(r50, position="absolute"),
    "sasa_resnet50_qr": partial(r50, content=False),
    "sasa_resnet50_stem_pointwise": partial(SASA, depths=LAYERS[50], stem="attention-pointwise"),
    "sasa_resnet50_stem_conv": partial(SASA, depths=LAYERS[50], stem="attention-conv"),
}  # fmt: skip

# Arguments that saved models and runs state, and what they were for those that do not.
STATED = {"border": "zero"}
LEAVES = (StandAloneAttention, AttentionStem)
FIRST = "stem.conv"
TIMM_CONFIGS = {
    **{
        name: {"input_size": (3, 64, 64), "pool_size": (4, 4)}
        for name in ("sasa_nano", "sasa_nano_conv")
    },
    **{
        name: {"first_conv": "backbone.stem.query"}
        for name, make in VARIANTS.items()
        if make.keywords.get("stem", "attention").startswith("attention")
    },
    "sasa_cifar": {"input_size": (3, 32, 32), "pool_size": (4, 4)},
}

_DIGIT = "no reading that was tried gives this digit without losing a neighbouring cell"
_COST = (
    "13 ways of counting explain 20 of the 22 networks' costs and none explains more "
    "(benchmarks/sasa_flops.py); "
)
_K11 = f"{_COST}the one with the stem's five mixtures misses this cell, others a cell of Table 3"
_QR = f"{_COST}all 13 miss this cell"

# Appendix A.3 says it of classification too: "as for the image classification experiments".
_TEXT = (
    Claim("A.3", "attention's k", "7"),
    Claim("A.3", "attention's heads", "8"),
    Claim("A.1", "places outside the map take", "nothing"),
    Claim("A.1", "stem's window", "4x4"),
    Claim("A.1", "stem's heads", "4"),
    Claim("A.1", "mixtures are shared by the stem's heads", "yes"),
)

CLAIMS = {
    "sasa_resnet26_conv": (
        Claim("Table 1", "params", "13.7M"),
        Claim("Table 1", "FLOPs", "4.7B"),
        Claim("Table 1", "top-1", "74.5%"),
    ),
    "sasa_resnet38_conv": (
        Claim("Table 1", "params", "19.6M"),
        Claim("Table 1", "FLOPs", "6.5B"),
        Claim("Table 1", "top-1", "76.2%"),
    ),
    "sasa_resnet50_conv": (
        Claim("Table 1", "params", "25.6M"),
        Claim("Table 1", "FLOPs", "8.2B"),
        Claim("Table 1", "top-1", "76.9%"),
        Claim("Table 3, none", "params", "25.6M"),
        Claim("Table 3, none", "FLOPs", "8.2B"),
        Claim("Table 3, none", "val acc", "79.5%"),
    ),
    "sasa_resnet26_convstem": (
        Claim("Table 1", "params", "10.3M"),
        Claim("Table 1", "FLOPs", "4.5B"),
        Claim("Table 1", "top-1", "75.8%"),
    ),
    "sasa_resnet38_convstem": (
        Claim("Table 1", "params", "14.1M", differs=_DIGIT),
        Claim("Table 1", "FLOPs", "5.7B"),
        Claim("Table 1", "top-1", "77.1%"),
    ),
    "sasa_resnet50_convstem": (
        Claim("Table 1", "params", "18.0M"),
        Claim("Table 1", "FLOPs", "7.0B"),
        Claim("Table 1", "top-1", "77.4%"),
        Claim("Table 3, 1234", "params", "18.0M"),
        Claim("Table 3, 1234", "FLOPs", "7.0B"),
        Claim("Table 3, 1234", "val acc", "80.2%"),
        Claim("Table 4, k=7", "FLOPs", "7.0B"),
        Claim("Table 4, k=7", "top-1", "77.4%"),
        Claim("Table 5, relative", "val acc", "80.2%"),
        Claim("Table 6, q.k + q.r", "params", "18.0M"),
        Claim("Table 6, q.k + q.r", "FLOPs", "7.0B"),
        Claim("Table 6, q.k + q.r", "top-1", "77.4%"),
    ),
    "sasa_resnet26": (
        *_TEXT,
        Claim("Table 1", "params", "10.3M"),
        Claim("Table 1", "FLOPs", "4.7B"),
        Claim("Table 1", "top-1", "74.8%"),
    ),
    "sasa_resnet38": (
        *_TEXT,
        Claim("Table 1", "params", "14.1M", differs=_DIGIT),
        Claim("Table 1", "FLOPs", "6.0B"),
        Claim("Table 1", "top-1", "76.9%"),
    ),
    "sasa_resnet50": (
        *_TEXT,
        Claim("Table 1", "params", "18.0M"),
        Claim("Table 1", "FLOPs", "7.2B"),
        Claim("Table 1", "top-1", "77.6%"),
        Claim("Table 7, spatially aware", "FLOPs", "7.2B"),
        Claim("Table 7, spatially aware", "top-1", "77.6%"),
    ),
    "sasa_resnet50_at234": (
        Claim("Table 3, 234", "params", "18.1M"),
        Claim("Table 3, 234", "FLOPs", "7.3B"),
        Claim("Table 3, 234", "val acc", "80.7%"),
    ),
    "sasa_resnet50_at34": (
        Claim("Table 3, 34", "params", "18.5M"),
        Claim("Table 3, 34", "FLOPs", "7.5B"),
        Claim("Table 3, 34", "val acc", "80.7%"),
    ),
    "sasa_resnet50_at4": (
        Claim("Table 3, 4", "params", "20.8M"),
        Claim("Table 3, 4", "FLOPs", "8.0B"),
        Claim("Table 3, 4", "val acc", "80.2%"),
    ),
    "sasa_resnet50_at1": (
        Claim("Table 3, 1", "params", "25.5M"),
        Claim("Table 3, 1", "FLOPs", "7.9B"),
        Claim("Table 3, 1", "val acc", "79.7%"),
    ),
    "sasa_resnet50_at12": (
        Claim("Table 3, 12", "params", "25.0M", differs=_DIGIT),
        Claim("Table 3, 12", "FLOPs", "7.8B"),
        Claim("Table 3, 12", "val acc", "79.6%"),
    ),
    "sasa_resnet50_at123": (
        Claim("Table 3, 123", "params", "22.7M"),
        Claim("Table 3, 123", "FLOPs", "7.2B"),
        Claim("Table 3, 123", "val acc", "79.9%"),
    ),
    "sasa_resnet50_k3": (
        Claim("Table 4, k=3", "FLOPs", "6.6B"),
        Claim("Table 4, k=3", "top-1", "76.4%"),
    ),
    "sasa_resnet50_k5": (
        Claim("Table 4, k=5", "FLOPs", "6.7B"),
        Claim("Table 4, k=5", "top-1", "77.2%"),
    ),
    "sasa_resnet50_k9": (
        Claim("Table 4, k=9", "FLOPs", "7.3B"),
        Claim("Table 4, k=9", "top-1", "77.7%"),
    ),
    "sasa_resnet50_k11": (
        Claim("Table 4, k=11", "FLOPs", "7.7B", differs=_K11),
        Claim("Table 4, k=11", "top-1", "77.6%"),
    ),
    "sasa_resnet50_nopos": (Claim("Table 5, none", "val acc", "77.6%"),),
    "sasa_resnet50_abspos": (Claim("Table 5, absolute", "val acc", "78.2%"),),
    "sasa_resnet50_qr": (
        Claim("Table 6, q.r only", "params", "16.7M", differs=_DIGIT),
        Claim("Table 6, q.r only", "FLOPs", "6.1B", differs=_QR),
        Claim("Table 6, q.r only", "top-1", "76.9%"),
    ),
    "sasa_resnet50_stem_pointwise": (
        Claim("Table 7, stand-alone", "FLOPs", "7.1B"),
        Claim("Table 7, stand-alone", "top-1", "76.2%"),
    ),
    "sasa_resnet50_stem_conv": (
        Claim("Table 7, conv values", "FLOPs", "7.4B"),
        Claim("Table 7, conv values", "top-1", "77.2%"),
    ),
}
