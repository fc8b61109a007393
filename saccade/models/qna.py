"""QnA-ViT: learned queries where maps are large, self-attention in windows where they are small.

Each stage, in this order:

    window attention   x + SA(LN x),      x + FFN(LN x)      `sa_depths` times
    learned queries    x + QnA(LN x),     x + FFN(LN x)      `depths` times

and between stages a QnA of stride 2 doubles width and heads (`saccade.layers.qna.QnADown`). The
authors count that layer to the stage before it, and so do the drop-path rates; here it is the first
layer of the stage after it, so that a stage ends in the map that a detector uses.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import timm
from timm.layers import LayerNorm2d
from torch import nn

from saccade.layers import flax, window
from saccade.layers import qna as layers
from saccade.layers.block import Block, SEBasicBlock
from saccade.layers.qna import LearnedQueryAttention, QnADown, QnAFeedForward
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.stem import FineStem, Patches
from saccade.layers.walk import walkable
from saccade.layers.window import WindowAttention
from saccade.models.backbone import Backbone, Stage, drop_rates
from saccade.models.flax import read
from saccade.paper import Claim


@walkable
class QnA(Backbone):
    """Widths are dim, 2 dim, 4 dim, ...; the tuples have an entry per stage.

    depths, heads                    of the QnA blocks; their k is `window`, their L `queries`
    sa_depths, sa_heads, sa_windows  of the window-attention blocks
    patch                            side of the patches that the stem reads
    mixer                            "qna", or "sasa" in its place in the blocks (section 5.1)
    and, for images of few pixels:
    stem                             width of a 3 x 3 convolution at full resolution before all
                                     stages; none if 0
    conv_depths                      convolution blocks at the beginning of each stage; none if None
    """

    def __init__(
        self,
        dim: int = 64,
        depths: Sequence[int] = (2, 3, 2, 0),
        sa_depths: Sequence[int] = (0, 0, 4, 2),
        heads: Sequence[int] = (8, 16, 32, 64),
        sa_heads: Sequence[int] = (2, 4, 8, 16),
        sa_windows: Sequence[int] = (7, 7, 14, 7),
        *,
        window: int = 3,
        queries: int = 2,
        patch: int = 4,
        mixer: str = "qna",
        stem: int = 0,
        conv_depths: Sequence[int] | None = None,
        in_chans: int = 3,
        drop_path: float = 0.05,
    ):
        conv_depths = (0,) * len(depths) if conv_depths is None else conv_depths
        per_stage = depths, sa_depths, heads, sa_heads, sa_windows, conv_depths
        if len({len(entries) for entries in per_stage}) > 1:
            raise ValueError(
                f"QnA: one entry per stage is needed, got {depths=} {sa_depths=} {heads=} "
                f"{sa_heads=} {sa_windows=} {conv_depths=}"
            )
        if mixer not in ("qna", "sasa"):
            raise ValueError(f"QnA: mixer must be 'qna' or 'sasa', got {mixer=}")
        n = len(depths)
        widths = [dim * 2**i for i in range(n)]
        strides = [patch * 2**i for i in range(n)]
        ways = [1] * (n - 1) + [0]  # down-sampling counts as the last block of its stage
        counts = [sum(each) for each in zip(conv_depths, sa_depths, depths, ways, strict=True)]

        def local(i: int) -> nn.Module:
            if mixer == "sasa":
                return LocalAttention(widths[i], heads=heads[i], window=window)
            return LearnedQueryAttention(widths[i], heads[i], window, 1, queries, layout="NHWC")

        def block(i: int, mix: nn.Module, rate: float) -> Block:
            return Block(widths[i], mix, QnAFeedForward(widths[i]), rate)

        stages: list[nn.Module] = []
        first = FineStem(in_chans, stem) if stem else nn.Identity()
        down: nn.Module = Patches(stem or in_chans, dim, patch, patch, bias=False)
        for i, rates in enumerate(drop_rates(drop_path, counts)):
            mixers = [
                *(
                    WindowAttention(widths[i], sa_heads[i], sa_windows[i], layout="NHWC")
                    for _ in range(sa_depths[i])
                ),
                *(local(i) for _ in range(depths[i])),
            ]
            convs = [SEBasicBlock(widths[i], drop_path=rate) for rate in rates[: conv_depths[i]]]
            rest = zip(mixers, rates[conv_depths[i] :], strict=False)
            blocks = [*convs, *(block(i, mix, rate) for mix, rate in rest)]
            stages.append(Stage(down, blocks))
            if i < n - 1:
                down = QnADown(widths[i], 2 * heads[i], window, queries, rates[-1])
        super().__init__(
            first, stages, LayerNorm2d(widths[-1]),
            in_chans=in_chans, widths=widths, strides=strides,
        )  # fmt: skip
        self.depths, self.heads = tuple(depths), tuple(heads)
        self.sa_depths, self.sa_heads = tuple(sa_depths), tuple(sa_heads)


class LocalAttention(StandAloneAttention):
    """SASA on B H W C, as the blocks here hand it on; the same bytes, seen as NCHW."""

    def __init__(self, dim: int, **how: Any):
        super().__init__(dim, layout="NHWC", **how)


# -- variants -------------------------------------------------------------------------------------

tiny = partial(QnA)
small = partial(tiny, depths=(2, 3, 6, 0), sa_depths=(0, 0, 12, 2), drop_path=0.2)
base = partial(small, dim=96, heads=(6, 12, 24, 48), sa_heads=(3, 6, 12, 24), drop_path=0.5)

RELEASED: dict[str, partial[Backbone]] = {
    "qna_t": tiny,
    "qna_t_7x7": partial(tiny, window=7),
    "qna_s": small,
    "qna_b": base,
}

_WORK = "the authors count element-wise work too; these are convolutions and matrix products alone"


def _main_text(params: str, macs: str, top1: str) -> tuple[Claim, ...]:
    return (
        Claim("main text", "params", params),
        Claim("main text", "MACs", macs, differs=_WORK),
        Claim("main text", "top-1", top1),
    )


def _table_1(
    dim: int, depths: str, sa_depths: str, heads: str, sa_heads: str, down: str, differs: str = ""
) -> tuple[Claim, ...]:
    return (
        Claim("Table 1", "outputs", "(56, 28, 14, 7)"),
        Claim("Table 1", "stem", f"4x4 conv, stride 4, dim {dim}"),
        Claim("Table 1", "widths", str((dim, 2 * dim, 4 * dim, 8 * dim))),
        Claim("Table 1", "blocks", "3x3 QnA, stride 1"),
        Claim("Table 1", "down-sampling layers", "3x3 QnA, stride 2"),
        Claim("Table 1", "SA windows", "(14, 7)"),
        Claim("Table 1", "depths", depths),
        Claim("Table 1", "SA depths", sa_depths),
        Claim("Table 1", "heads of QnA blocks", heads),
        Claim("Table 1", "heads of SA blocks", sa_heads),
        Claim("Table 1", "heads of down-sampling", down, differs=differs),
        Claim("S3", "first block of stage 3", "SA"),
        Claim("S2.1", "queries are unit vectors", "yes"),
        Claim("S3", "expansion", "4"),
        Claim("S3", "skip of down-sampling", "1x1 conv, stride 2"),
        Claim("S3", "norm before attention and FFN", "yes"),
        Claim("S3", "before the pooling", "LayerNorm"),
        Claim("S6", "position biases of their own", "each query and head"),
    )


_T_HEADS = "(8, 16, 32)", "(8, 16)", "(16, 32, 64)"
_B_DOWN = "the released network doubles the heads, as everywhere else; Table 1 repeats T's"
_CLAIMS = {
    "qna_t": (
        *_main_text("16M", "2.5G", "81.7%"),
        *_table_1(64, "(2, 3, 2, 0)", "(0, 0, 4, 2)", *_T_HEADS),
    ),
    "qna_t_7x7": _main_text("16M", "2.6G", "82.0%"),
    "qna_s": (
        *_main_text("25M", "4.4G", "83.2%"),
        *_table_1(64, "(2, 3, 6, 0)", "(0, 0, 12, 2)", *_T_HEADS),
    ),
    "qna_b": (
        *_main_text("56M", "9.7G", "83.7%"),
        *_table_1(
            96, "(2, 3, 6, 0)", "(0, 0, 12, 2)", "(6, 12, 24)", "(12, 24)",
            "(16, 32, 48)", differs=_B_DOWN,
        ),
    ),
}  # fmt: skip

# -- the supplement's ablations, row by row -------------------------------------------------------

# QnA alone: blocks, heads; top-1 after 90 epochs.
TABLE_2 = (
    ((2, 2, 2, 2), (2, 2, 2, 2), "68.33%"),
    ((2, 2, 2, 2), (4, 4, 4, 4), "69.05%"),
    ((2, 2, 2, 2), (8, 8, 8, 8), "69.98%"),
    ((2, 2, 2, 2), (2, 4, 8, 16), "70.08%"),
    ((2, 2, 2, 2), (4, 8, 16, 32), "70.54%"),
    ((2, 2, 2, 2), (8, 16, 32, 64), "71.12%"),
    ((3, 4, 6, 3), (2, 4, 8, 16), "72.66%"),
    ((3, 4, 6, 3), (4, 8, 16, 32), "72.82%"),
    ((3, 4, 6, 3), (8, 16, 32, 64), "73.02%"),
)

# Heads of QnA, of SA; top-1 after 90 and 300 epochs. Windows are not printed: the released code's.
TABLE_3 = (
    ((2, 4, 8, 16), (2, 4, 8, 16), "78.17%", ""),
    ((4, 8, 16, 32), (4, 8, 16, 32), "79.24%", ""),
    ((8, 16, 32, 64), (8, 16, 32, 64), "79.34%", ""),
    ((8, 16, 32, 64), (2, 4, 8, 16), "79.31%", "81.5%"),
    ((8, 16, 32, 64), (4, 8, 16, 32), "79.53%", "81.49%"),
)

# Blocks of QnA, of SA, window of SA before the last stage; parameters, GFLOPs, top-1. Section 5.1
# varies the queries of row 10, saccade.build("qna_table4_2220_1152_w7", queries=1), and puts SASA
# in the place of QnA, saccade.build("qna_sasa").
TABLE_4 = (
    ((1, 1, 4, 0), (3, 3, 3, 2), 14, "16.62M", "3.200G", "81.70%"),
    ((2, 2, 4, 0), (2, 2, 3, 2), 14, "16.51M", "2.909G", "81.74%"),
    ((3, 3, 4, 0), (1, 1, 3, 2), 14, "16.40M", "2.875G", "81.86%"),
    ((4, 4, 4, 0), (0, 0, 3, 2), 14, "16.30M", "2.584G", "81.83%"),
    ((4, 4, 7, 0), (0, 0, 0, 2), 14, "16.00M", "2.631G", "80.8%"),
    ((4, 4, 5, 0), (0, 0, 2, 2), 14, "16.25M", "2.698G", "81.30%"),
    ((4, 4, 3, 0), (0, 0, 4, 2), 14, "16.40M", "2.628G", "81.9%"),
    ((4, 4, 1, 0), (0, 0, 6, 2), 14, "16.55M", "2.714G", "81.9%"),
    ((1, 1, 1, 0), (2, 2, 6, 2), 7, "16.38M", "2.568G", "80.0%"),
    ((2, 2, 2, 0), (1, 1, 5, 2), 7, "16.3M", "2.491G", "80.6%"),
    ((2, 2, 3, 0), (1, 1, 4, 2), 7, "16.23M", "2.471G", "80.7%"),
    ((2, 2, 4, 0), (1, 1, 3, 2), 7, "16.16M", "2.450G", "80.8%"),
)
_ROWS = (
    "no count by blocks can print this table: five rows differ in how many of stage 3's seven "
    "blocks are QnA, so that their parameters must lie on a line, and the best line misses 0.033M "
    "where rounding leaves 0.005M (16.00, 16.25 and 16.55M for 7, 5 and 1). The released block, "
    "whose counts are exact for T, S and B, is counted"
)
_FLOPS = (
    "no count by blocks can print this table, nor its GFLOPs: as stage 3's seven blocks become SA "
    "from none to six they go 2.631, 2.698, 2.584, 2.628, 2.714 instead of along a line. The "
    "released block is counted, by convolutions and matrix products alone"
)


def _row_2(
    blocks: tuple, heads: tuple, top1: str
) -> tuple[str, partial[Backbone], tuple[Claim, ...]]:
    name = f"qna_table2_{_join(blocks)}_h{_join(heads, '_')}"
    make = partial(tiny, depths=blocks, sa_depths=(0, 0, 0, 0), heads=heads)
    return name, make, (
        Claim("Table 2", "top-1 at 90 epochs", top1),
        Claim("Table 2", "depths", str(blocks)),
        Claim("Table 2", "heads", str(heads)),
    )  # fmt: skip


def _row_3(
    heads: tuple, sa_heads: tuple, short: str, long: str
) -> tuple[str, partial[Backbone], tuple[Claim, ...]]:
    name = f"qna_table3_q{_join(heads, '_')}_s{_join(sa_heads, '_')}"
    blocks = {"depths": (1, 2, 3, 0), "sa_depths": (1, 1, 3, 2)}
    claims = [
        Claim("Table 3", "top-1 at 90 epochs", short),
        *(Claim("Table 3", what, str(value)) for what, value in (
            ("depths", blocks["depths"]), ("SA depths", blocks["sa_depths"]), ("heads", heads),
            ("SA heads", sa_heads),
        )),
    ]  # fmt: skip
    if long:
        claims.append(Claim("Table 3", "top-1", long))
    return name, partial(tiny, **blocks, heads=heads, sa_heads=sa_heads), tuple(claims)


def _row_4(
    blocks: tuple, sa_blocks: tuple, window: int, params: str, macs: str, top1: str
) -> tuple[str, partial[Backbone], tuple[Claim, ...]]:
    name = f"qna_table4_{_join(blocks)}_{_join(sa_blocks)}" + ("_w7" if window == 7 else "")
    make = partial(tiny, depths=blocks, sa_depths=sa_blocks, sa_windows=(window,) * 3 + (7,))
    return name, make, (
        Claim("Table 4", "params", params, differs=_ROWS),
        Claim("Table 4", "MACs", macs, differs=_FLOPS),
        Claim("Table 4", "top-1", top1),
        Claim("Table 4", "depths", str(blocks)),
        Claim("Table 4", "SA depths", str(sa_blocks)),
        Claim("Table 4", "SA windows", str(_windows(sa_blocks, (window,) * 3 + (7,)))),
    )  # fmt: skip


def _windows(sa_blocks: Sequence[int], windows: Sequence[int]) -> tuple[int, ...]:
    """The windows of the stages that have window attention, which alone are printed."""
    return tuple(side for count, side in zip(sa_blocks, windows, strict=True) if count)


def _join(entries: Sequence[int], by: str = "") -> str:
    return by.join(map(str, entries))


_TABLES = [
    *(_row_2(*row) for row in TABLE_2),
    *(_row_3(*row) for row in TABLE_3),
    *(_row_4(*row) for row in TABLE_4),
]

VARIANTS: dict[str, partial[Backbone]] = {
    **RELEASED,
    "qna_nano": partial(
        QnA, dim=16, depths=(1, 1, 1, 0), sa_depths=(0, 0, 1, 1), heads=(2, 4, 8, 16),
        sa_heads=(1, 1, 2, 4), sa_windows=(8, 8, 8, 6), patch=2,
    ),
    # For images of 32 pixels: convolutions first, then learned queries, in the first two stages.
    "qna_cifar": partial(
        QnA, dim=40, depths=(1, 1, 1), sa_depths=(0, 0, 0), heads=(5, 10, 20), sa_heads=(1, 1, 1),
        sa_windows=(8, 8, 8), patch=2, stem=32, conv_depths=(2, 1, 0), drop_path=0.0,
    ),
    **{name: make for name, make, _ in _TABLES},
    "qna_sasa": partial(
        tiny, depths=(2, 2, 2, 0), sa_depths=(1, 1, 5, 2), sa_windows=(7,) * 4, mixer="sasa",
    ),
}  # fmt: skip
CLAIMS = {**_CLAIMS, **{name: claims for name, _, claims in _TABLES}}

LEAVES = (LearnedQueryAttention, WindowAttention, LocalAttention, QnAFeedForward)
FIRST = "stages.0.down"
TIMM_CONFIGS = {
    "qna_nano": {"input_size": (3, 64, 64), "pool_size": (4, 4)},
    "qna_cifar": {
        "input_size": (3, 32, 32),
        "pool_size": (4, 4),
        "first_conv": "backbone.stem.conv",
    },
}


# -- the authors' weights -------------------------------------------------------------------------


def from_flax(
    source: str | Path | Mapping[str, Any], name: str | None = None, **overrides: Any
) -> nn.Module:
    """A model with the authors' weights, from .npz, Flax's msgpack, or a tree in memory.

    Which of the released variants it is, the shapes tell; any other must be named, with the
    arguments of `saccade.build` that make it.
    """
    tree = read(source)
    stem, head = tree.get("StemBlock_0/conv_1x1/kernel"), tree.get(f"{_HEAD}/head_logits/kernel")
    if stem is not None and np.ndim(stem) == 4 and np.size(stem):
        overrides.setdefault("in_chans", stem.shape[2])
    if head is not None and np.ndim(head) == 2 and np.size(head):
        overrides.setdefault("num_classes", head.shape[1])

    def misfits(variant: str) -> int:
        model = timm.create_model(variant, device="meta", **overrides)
        shapes = flax.shapes(model, flax_entries(model))
        return sum(p not in tree or np.shape(tree[p]) != shape for p, shape in shapes.items())

    name = min(RELEASED, key=misfits) if name is None else name
    model = timm.create_model(name, **overrides).eval()
    where = "the tree" if isinstance(source, Mapping) else repr(str(source))
    flax.load(model, flax_entries(model), tree, f"{where}, read as {name},")
    return model


def to_flax(model: nn.Module) -> dict[str, np.ndarray]:
    """The weights as the authors' code names and lays them out, one array a path."""
    return flax.dump(model, flax_entries(model))


_HEAD = "ClassificationHead_0"


def flax_entries(model: nn.Module) -> flax.Entries:
    """Every parameter of the authors' QnAViT. Blocks are numbered per stage and kind, from 1."""
    entries = flax.conv("StemBlock_0/conv_1x1", "backbone.stages.0.down")
    stages = [cast(Stage, stage) for stage in cast(Backbone, model.backbone).stages]
    for i, stage in enumerate(stages):
        counts = {"LSAStage": 0, "QnAStage": 0}
        for j, block in enumerate(stage.blocks):
            local = isinstance(block.mix, WindowAttention)
            kind, word = ("LSAStage", "MSA") if local else ("QnAStage", "QnA")
            counts[kind] += 1
            path = f"{kind}_{i}/{word}_Block_{counts[kind]}"
            entries |= flax.under(path, f"backbone.stages.{i}.blocks.{j}", _block_entries(block))
        if i + 1 < len(stages):
            path = f"QnAStage_{i}/QnA_Block_{counts['QnAStage'] + 1}_stride_2"
            way = f"backbone.stages.{i + 1}.down"
            entries |= flax.under(path, way, _block_entries(stages[i + 1].down))
    return {
        **entries,
        **flax.norm(f"{_HEAD}/LayerNorm_0", "backbone.norm"),
        **flax.linear(f"{_HEAD}/head_logits", "head.fc", bias=True),
    }


def _block_entries(block: nn.Module) -> flax.Entries:
    mix = (
        flax.under("MultiHeadSelfAttention_0", "mix", window.flax_entries(block.mix))
        if isinstance(block.mix, WindowAttention)
        else flax.under("FusedKQnA_0", "mix", layers.flax_entries(cast(Any, block.mix)))
    )
    return {
        **flax.norm("LayerNorm_0", "mix_norm"),
        **mix,
        **(flax.conv("Conv_0", "skip") if isinstance(block, QnADown) else {}),
        **flax.norm("LayerNorm_1", "ffn_norm"),
        **flax.linear("MlpBlock_0/Dense_0", "ffn.widen", bias=True),
        **flax.linear("MlpBlock_0/Dense_1", "ffn.narrow", bias=True),
    }
