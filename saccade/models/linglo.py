"""LinGlo: attention that is linear in the image and global from the first stage on.

Each stage begins with a strided convolution and repeats one block:

    x + KeyOnlyAttention(LN x),  x + FFN(LN x)     FFN: widen -> RP-CPE -> GELU -> narrow
"""

from collections.abc import Callable, Sequence
from functools import partial

from timm.layers import LayerNorm2d
from torch import nn

from saccade.layers.block import Block, FeedForward, SEBasicBlock
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import CPE, RPCPE, AbsolutePosition
from saccade.layers.stem import ConvDown, FineStem, PatchDown
from saccade.layers.walk import walkable
from saccade.models.backbone import Backbone, Stage, drop_rates
from saccade.paper import Claim

MIXERS: dict[str, Callable[..., nn.Module]] = {
    "key-only": partial(KeyOnlyAttention, layout="NHWC"),
    "dot": partial(DotProductAttention, layout="NHWC"),
    "dot-naive": partial(DotProductAttention, fused=False, layout="NHWC"),
}


@walkable
class LinGlo(Backbone):
    """Convolution and key-only attention in alternation, in every stage.

    The arguments after `drop_path` are the paper's ablations:
    layout    a letter per stage: H, the block above; C, a convolution block with SE (Table 5). The
              variants have three of these a stage: the text leaves it open, the counts ask for it.
              Or a word per stage with a letter per block, ("CH", "CH", "H"), which is ours
    position  "rp-cpe", "p-cpe", "r-cpe", "cpe" (Table 6) or "absolute" (section 5.4)
    branch_norm  BatchNorm in the branches of the positional encoding, as in the re-parameterisation
              that the paper cites (3.2); folded by `fuse`
    mixer     "key-only", "dot" or "dot-naive" (Fig. 4)
    down      "conv" or "patch": non-overlapping patches (section 5.4)
    steps     stride of each stage; 1 means no down-sampling, and no new positions (section 5.4)
    grid      the image side for which absolute positions are kept
    stem      width of a 3 x 3 convolution at full resolution before all stages, for images of few
              pixels; none if 0
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int] = (1, 2, 5, 8),
        expand: Sequence[int] = (8, 8, 4, 4),
        *,
        in_chans: int = 3,
        drop_path: float = 0.1,
        layout: str | Sequence[str] = "HHHH",
        position: str = "rp-cpe",
        branch_norm: bool = True,
        mixer: str = "key-only",
        down: str = "conv",
        steps: Sequence[int] = (4, 2, 2, 2),
        grid: int = 224,
        stem: int = 0,
    ):
        choices = (*CPE, "absolute")
        if position not in choices:
            raise ValueError(f"LinGlo: position must be one of {choices}, got {position=}")
        if mixer not in MIXERS:
            raise ValueError(f"LinGlo: mixer must be one of {tuple(MIXERS)}, got {mixer=}")
        if down not in ("conv", "patch"):
            raise ValueError(f"LinGlo: down must be 'conv' or 'patch', got {down=}")
        if set("".join(layout)) - set("CH") or not all(layout):
            raise ValueError(f"LinGlo: layout has a letter C or H per stage, got {layout=}")
        lengths = {len(widths), len(depths), len(heads), len(expand), len(steps), len(layout)}
        if len(lengths) > 1:
            raise ValueError(
                f"LinGlo: one entry per stage is needed, got {widths=} {depths=} {heads=} "
                f"{expand=} {steps=} {layout=}"
            )
        words = [word * depth if len(word) == 1 else word
                 for word, depth in zip(layout, depths, strict=True)]  # fmt: skip
        if [len(word) for word in words] != list(depths):
            raise ValueError(
                f"LinGlo: a word of layout has a letter for each block, got {layout=} {depths=}"
            )

        def block(i: int, j: int, rate: float) -> nn.Module:
            dim = widths[i]
            if words[i][j] == "C":
                return SEBasicBlock(dim, drop_path=rate)
            hidden = dim * expand[i]
            encode = CPE[position](hidden, norm=branch_norm) if position in CPE else None
            return Block(dim, MIXERS[mixer](dim, heads[i]), FeedForward(dim, hidden, encode), rate)

        first = FineStem(in_chans, stem) if stem else nn.Identity()
        stages, strides, dim = [], [], stem or in_chans
        for i, rates in enumerate(drop_rates(drop_path, depths)):
            strides.append(steps[i] * (strides[-1] if strides else 1))
            way = [_down(down, dim, widths[i], steps[i])]
            if position == "absolute" and steps[i] > 1:
                side = -(-grid // strides[-1])
                way.append(AbsolutePosition(widths[i], (side, side)))
            blocks = [block(i, j, rate) for j, rate in enumerate(rates)]
            stages.append(Stage(nn.Sequential(*way), blocks, LayerNorm2d(widths[i])))
            dim = widths[i]
        super().__init__(
            first, stages, nn.Identity(), in_chans=in_chans, widths=widths, strides=strides
        )
        self.depths, self.heads, self.expand = tuple(depths), tuple(heads), tuple(expand)


def _down(kind: str, dim: int, out: int, step: int) -> nn.Module:
    if step == 1:
        return nn.Identity()
    if kind == "patch":
        return PatchDown(dim, out, step)
    return ConvDown(dim, out, kernel=7 if step == 4 else 3, stride=step)


b0 = partial(LinGlo, widths=(32, 64, 160, 256), depths=(2, 3, 3, 2))
b1 = partial(LinGlo, widths=(64, 128, 320, 512), depths=(2, 3, 3, 2))
b2 = partial(LinGlo, widths=(64, 128, 320, 512), depths=(3, 5, 9, 3))

VARIANTS = {
    "linglo_b0": b0,
    "linglo_b1": b1,
    "linglo_b2": b2,
    "linglo_nano": partial(
        LinGlo, widths=(24, 48, 96, 112), depths=(1, 1, 2, 1), heads=(1, 2, 4, 4),
        expand=(4, 4, 3, 3), steps=(2, 2, 2, 2), grid=64,
    ),
    # For images of 32 pixels: convolution and attention in turn, in every stage but the last.
    "linglo_cifar": partial(
        LinGlo, widths=(64, 96, 128), depths=(2, 2, 1), heads=(4, 6, 8), expand=(2, 2, 2),
        steps=(2, 2, 2), layout=("CH", "CH", "H"), position="cpe", branch_norm=False, grid=32,
        stem=32,
    ),
    "linglo_b0_chhh": partial(b0, layout="CHHH", depths=(3, 3, 3, 2)),
    "linglo_b0_cchh": partial(b0, layout="CCHH", depths=(3, 3, 3, 2)),
    "linglo_b0_cpe": partial(b0, position="cpe"),
    "linglo_b0_rcpe": partial(b0, position="r-cpe"),
    "linglo_b0_pcpe": partial(b0, position="p-cpe"),
    "linglo_b0_dot": partial(b0, mixer="dot"),
    "linglo_b0_wo_c": partial(b0, down="patch", position="absolute"),
    "linglo_b0_wo_ch": partial(
        b0, widths=(150,) * 4, heads=(3,) * 4, down="patch", position="absolute",
        steps=(16, 1, 1, 1),
    ),
}  # fmt: skip

# Values of arguments for files of versions that did not write these arguments yet.
STATED_BY = {name: {"depths": (2, 3, 3, 2)} for name in ("linglo_b0_chhh", "linglo_b0_cchh")}
LEAVES = (KeyOnlyAttention, DotProductAttention, AbsolutePosition, RPCPE, FeedForward)
FIRST = "stages.0.down.0.conv"
TIMM_CONFIGS = {
    "linglo_cifar": {
        "input_size": (3, 32, 32),
        "pool_size": (4, 4),
        "first_conv": "backbone.stem.conv",
    },
    "linglo_nano": {"input_size": (3, 64, 64), "pool_size": (4, 4)},
    "linglo_b0_wo_ch": {"pool_size": (14, 14)},
}

PVT = (
    "all parameter cells of Tables 2-4 equal those of another model family (PVTv2 B0, B1, B2), and "
    "no reading of LinGlo's text gives them; this is the count of the network as described"
)
# b0 stands in Tables 2 and 5 with the same 3.4M, which one reading gives: the network as deployed
# (one 3x3 per RP-CPE) without its classifier. So Table 2 is counted like Table 5.
_TABLE_2 = (
    "counted as b0 is, whose 3.4M in this table and in Table 5 are the deployed network without "
    "its classifier; the printed figure is PVTv2's, and no reading of LinGlo's text gives it"
)
# Properties are measured by `saccade.paper.properties`, as those of Table 1's other columns are.
_COMMON = (
    Claim("Table 1", "linear complexity", "yes"),
    Claim("Table 1", "content-based interaction", "yes"),
    Claim("Table 1", "global receptive field", "yes"),
    Claim("§1", "stages with all three properties", "1, 2, 3, 4"),
    Claim("3.4", "first down-sampling", "(7, 4, 3)"),
    Claim("3.4", "other down-sampling", "(3, 2, 1)"),
    Claim("3.4", "branches of RP-CPE", "4"),
    Claim("3.2", "branches of RP-CPE, deployed", "1"),
    Claim("3.2", "skip beside the branches", "yes"),
    Claim("3.2", "branches are normalised", "yes"),
    Claim("3.3", "attention", "key-only"),
    Claim("3.3", "positions", "RP-CPE"),
    Claim("3.3", "kind of down-sampling", "regular convolutions"),
    Claim("3.3", "norm where the size changes", "LayerNorm"),
    Claim("3.3", "norm before attention and FFN", "yes"),
    Claim("3.4", "activation", "GELU"),
)

CLAIMS = {
    "linglo_b0": (
        *_COMMON,
        Claim("Table 2", "deployed backbone params", "3.4M"),
        Claim("Table 2", "top-1", "72.5%"),
        Claim("3.4", "widths", "(32, 64, 160, 256)"),
        Claim("3.4", "depths", "(2, 3, 3, 2)"),
        Claim("3.4", "heads", "(1, 2, 5, 8)"),
        Claim("3.4", "expand", "(8, 8, 4, 4)"),
        Claim("Table 5", "deployed backbone params", "3.4M"),
        Claim("Table 5", "top-1 at 100 epochs", "69.7%"),
        Claim("Table 6", "top-1 at 100 epochs", "69.7%"),
    ),
    "linglo_b1": (
        *_COMMON,
        Claim("Table 2", "deployed backbone params", "13.1M", differs=_TABLE_2),
        Claim("Table 2", "top-1", "79.7%"),
        Claim("3.4", "widths", "(64, 128, 320, 512)"),
        Claim("3.4", "depths", "(2, 3, 3, 2)"),
        Claim("3.4", "heads", "(1, 2, 5, 8)"),
        Claim("3.4", "expand", "(8, 8, 4, 4)"),
    ),
    "linglo_b2": (
        *_COMMON,
        Claim("Table 2", "deployed backbone params", "25.4M", differs=_TABLE_2),
        Claim("Table 2", "top-1", "82.7%"),
        Claim("3.4", "widths", "(64, 128, 320, 512)"),
        Claim("3.4", "depths", "(3, 5, 9, 3)"),
        Claim("3.4", "heads", "(1, 2, 5, 8)"),
        Claim("3.4", "expand", "(8, 8, 4, 4)"),
    ),
    "linglo_b0_chhh": (
        Claim("Table 5", "deployed backbone params", "3.4M"),
        Claim("Table 5", "top-1 at 100 epochs", "68.8%"),
        Claim("5.1", "stages of convolution blocks with SE", "1"),
    ),
    "linglo_b0_cchh": (
        Claim("Table 5", "deployed backbone params", "3.3M"),
        Claim("Table 5", "top-1 at 100 epochs", "67.2%"),
        Claim("5.1", "stages of convolution blocks with SE", "1, 2"),
    ),
    "linglo_b0_wo_c": (
        Claim("5.4", "first down-sampling", "(4, 4, 0)"),
        Claim("5.4", "other down-sampling", "(2, 2, 0)"),
        Claim("5.4", "kind of down-sampling", "patch embeddings"),
        Claim("5.4", "positions", "absolute"),
        Claim("5.4", "outputs", "(56, 28, 14, 7)"),
    ),
    "linglo_b0_wo_ch": (
        Claim("5.4", "first down-sampling", "(16, 16, 0)"),
        Claim("5.4", "outputs", "(14, 14, 14, 14)"),
        Claim("5.4", "widths", "(150, 150, 150, 150)"),
        Claim("5.4", "heads", "(3, 3, 3, 3)"),
        Claim("5.4", "positions", "absolute"),
    ),
    "linglo_b0_dot": (Claim("5.2", "attention", "dot-product"),),
    "linglo_b0_cpe": (
        Claim("Table 6", "top-1 at 100 epochs", "68.5%"),
        Claim("5.3", "branches of RP-CPE", "1"),
        Claim("5.3", "skip beside the branches", "no"),
    ),
    "linglo_b0_rcpe": (
        Claim("Table 6", "top-1 at 100 epochs", "69.2%"),
        Claim("5.3", "branches of RP-CPE", "1"),
        Claim("5.3", "skip beside the branches", "yes"),
    ),
    "linglo_b0_pcpe": (
        Claim("Table 6", "top-1 at 100 epochs", "69.3%"),
        Claim("5.3", "branches of RP-CPE", "4"),
        Claim("5.3", "branches of RP-CPE, deployed", "1"),
        Claim("5.3", "skip beside the branches", "no"),
    ),
}
