"""QnA's ablations (section 5.1, supplement Tables 2 to 4) with qna_nano and a fifth of CIFAR-10."""

from typing import Any

from saccade.recipes.augment import Augment, Test
from saccade.recipes.autoencode import AutoEncode
from saccade.recipes.recipe import Loop, Model, Optim, Recipe, Schedule
from saccade.study.grid import Grid, GridRow, Study
from saccade.study.setting import CIFAR

_SHORT = "top-1 at 90 epochs"


def _options(**options: Any) -> dict[str, Any]:
    return {f"model.options.{name}": value for name, value in options.items()}


QUERIES = Grid(
    where="§5.1",
    asks="How many learned queries?",
    rows=(
        GridRow("2 queries"),
        *(GridRow(f"{n} quer{'y' if n == 1 else 'ies'}", _options(queries=n)) for n in (1, 3, 4)),
    ),
)
SASA = Grid(
    where="§5.1, SASA",
    asks="Is QnA as good as SASA in its place?",
    rows=(GridRow("QnA"), GridRow("SASA", _options(mixer="sasa"))),
)
WINDOWS = Grid(
    where="main text",
    asks="Which window should the learned queries see?",
    rows=(
        GridRow("3 x 3", {}, (("qna_t", "top-1"),)),
        GridRow("5 x 5", _options(window=5)),
        GridRow("7 x 7", _options(window=7), (("qna_t_7x7", "top-1"),)),
    ),
)


def _heads_row(heads: tuple[int, ...], deep: bool, paper: tuple[int, ...]) -> GridRow:
    """QnA alone; the paper's heads are twice these, as its widths are four times."""
    blocks = (2, 2, 3, 2) if deep else (1, 1, 1, 1)
    own = _options(depths=list(blocks), sa_depths=[0, 0, 0, 0], heads=list(heads))
    name = "3463" if deep else "2222"
    variant = f"qna_table2_{name}_h{'_'.join(map(str, paper))}"
    return GridRow(f"{list(blocks)}, heads {list(heads)}", own, ((variant, _SHORT),))


HEADS = Grid(
    where="Table 2",
    asks="How many heads should QnA have, and does their number grow with the width?",
    rows=(
        _heads_row((1, 1, 1, 1), False, (2, 2, 2, 2)),
        _heads_row((2, 2, 2, 2), False, (4, 4, 4, 4)),
        _heads_row((4, 4, 4, 4), False, (8, 8, 8, 8)),
        _heads_row((1, 2, 4, 8), False, (2, 4, 8, 16)),
        _heads_row((2, 4, 8, 16), False, (4, 8, 16, 32)),
        _heads_row((4, 8, 16, 32), False, (8, 16, 32, 64)),
        _heads_row((1, 2, 4, 8), True, (2, 4, 8, 16)),
        _heads_row((2, 4, 8, 16), True, (4, 8, 16, 32)),
        _heads_row((4, 8, 16, 32), True, (8, 16, 32, 64)),
    ),
    note="Half the paper's heads and half its blocks, for a quarter of its widths.",
)


def _mixed_row(heads: tuple[int, ...], sa_heads: tuple[int, ...]) -> GridRow:
    twice, sa_twice = (tuple(2 * n for n in each) for each in (heads, sa_heads))
    variant = f"qna_table3_q{'_'.join(map(str, twice))}_s{'_'.join(map(str, sa_twice))}"
    own = _options(
        depths=[1, 1, 1, 0], sa_depths=[1, 1, 1, 1], heads=list(heads), sa_heads=list(sa_heads)
    )
    return GridRow(f"QnA {list(heads)}, SA {list(sa_heads)}", own, ((variant, _SHORT),))


MIXED_HEADS = Grid(
    where="Table 3",
    asks="How many heads should QnA's and self-attention's blocks have beside each other?",
    rows=(
        _mixed_row((4, 8, 16, 32), (1, 2, 4, 8)),
        _mixed_row((1, 2, 4, 8), (1, 2, 4, 8)),
        _mixed_row((2, 4, 8, 16), (2, 4, 8, 16)),
        _mixed_row((4, 8, 16, 32), (4, 8, 16, 32)),
        _mixed_row((4, 8, 16, 32), (2, 4, 8, 16)),
    ),
    note="Half the paper's heads, one block for its one to three.",
)


def _share_row(
    depths: tuple[int, ...], sa_depths: tuple[int, ...], window: int, variant: str
) -> GridRow:
    own = _options(
        depths=list(depths), sa_depths=list(sa_depths), sa_windows=[window, window, window, 2]
    )
    label = f"QnA {list(depths)}, SA {list(sa_depths)}, window {window}"
    return GridRow(label, own, ((variant, "top-1"),))


SHARE = Grid(
    where="Table 4",
    asks="How many of the blocks should be QnA's?",
    rows=(
        _share_row((2, 2, 2, 0), (0, 0, 2, 1), 8, "qna_table4_4440_0032"),
        _share_row((1, 1, 2, 0), (1, 1, 2, 1), 8, "qna_table4_2240_2232"),
        _share_row((0, 0, 2, 0), (2, 2, 2, 1), 8, "qna_table4_1140_3332"),
        _share_row((2, 2, 4, 0), (0, 0, 0, 1), 8, "qna_table4_4470_0002"),
        _share_row((2, 2, 1, 0), (0, 0, 3, 1), 8, "qna_table4_4430_0042"),
        _share_row((1, 1, 0, 0), (1, 1, 4, 1), 4, "qna_table4_1110_2262_w7"),
        _share_row((1, 1, 2, 0), (1, 1, 2, 1), 4, "qna_table4_2240_1132_w7"),
    ),
    note="About half the paper's blocks; windows of 8 and 4 for its 14 and 7.",
)

QNA = Study(
    name="qna",
    paper="qna",
    about="QnA's ablations: queries, windows, heads, its share of the blocks, SASA in its place.",
    recipe=CIFAR("qna_nano"),
    data="cifar10",
    grids=(QUERIES, SASA, WINDOWS, HEADS, MIXED_HEADS, SHARE),
)


# -- auto-encoders, supplement section 7 ------------------------------------------------------


# The width that brings each pair nearest to a million parameters; it is a multiple of 8.
_PAIRS = (
    ("qna", "qna", 32), ("qna", "bilinear", 24), ("qna", "transpose", 16),
    ("conv", "qna", 24), ("conv", "bilinear", 16), ("conv", "transpose", 16),
    ("max", "qna", 24), ("max", "bilinear", 16), ("max", "transpose", 16),
)  # fmt: skip


def _coder_row(encoder: str, decoder: str, dim: int) -> GridRow:
    pair = {"task.encoder": encoder, "task.decoder": decoder, "task.dim": dim}
    return GridRow(f"{encoder} down, {decoder} up", {} if encoder == decoder == "qna" else pair)


AUTOENCODERS = Study(
    name="qna_autoencoders",
    paper="qna",
    about="QnA's auto-encoders: three down-sampling layers by three up-sampling layers.",
    recipe=Recipe(
        about="""A study's row: pictures of 128 px through a narrow middle, and back.
    saccade study qna_autoencoders --data FOLDER""",
        model=Model(name="autoencoder"),
        task=AutoEncode(encoder="qna", decoder="qna", dim=32),
        augment=Augment(size=128, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.5),
        test=Test(size=128, crop=1.0),
        optim=Optim(name="adam", lr=1e-3),
        schedule=Schedule(epochs=10),
        loop=Loop(batch=16, evaluate_every=2),
    ),
    data="",
    grids=(
        Grid(
            where="S7",
            asks="Which layers should lead down and up?",
            rows=tuple(_coder_row(*pair) for pair in _PAIRS),
            note="Of about a million parameters each, as near as widths in steps of 8 come.",
        ),
    ),
    figure="psnr",
)
