"""LinGlo's ablations (sections 5.1 to 5.4) with linglo_nano and a fifth of CIFAR-10."""

from saccade.study.grid import Grid, GridRow, Study
from saccade.study.setting import CIFAR

_TOP1 = "top-1 at 100 epochs"
_OPTIONS = "model.options."
_BASE = GridRow("H-H-H-H", {}, (("linglo_b0", _TOP1),))

TABLE_5 = Grid(
    where="Table 5",
    asks="Which stages should have convolution blocks (C) instead of LinGlo's (H)?",
    rows=(
        _BASE,
        GridRow("C-H-H-H", {f"{_OPTIONS}layout": "CHHH"}, (("linglo_b0_chhh", _TOP1),)),
        GridRow("C-C-H-H", {f"{_OPTIONS}layout": "CCHH"}, (("linglo_b0_cchh", _TOP1),)),
    ),
    note="The paper's rows have three C blocks a stage, to be of equal size; here one for one.",
)
TABLE_6 = Grid(
    where="Table 6",
    asks="Does the positional encoding need its residual (R) and its parallel branches (P)?",
    rows=(
        GridRow("RP-CPE", {}, (("linglo_b0", _TOP1),)),
        GridRow("P-CPE", {f"{_OPTIONS}position": "p-cpe"}, (("linglo_b0_pcpe", _TOP1),)),
        GridRow("R-CPE", {f"{_OPTIONS}position": "r-cpe"}, (("linglo_b0_rcpe", _TOP1),)),
        GridRow("CPE", {f"{_OPTIONS}position": "cpe"}, (("linglo_b0_cpe", _TOP1),)),
        GridRow("RP-CPE without norms in its branches", {f"{_OPTIONS}branch_norm": False}),
    ),
)
_WITHOUT_C = {f"{_OPTIONS}down": "patch", f"{_OPTIONS}position": "absolute", f"{_OPTIONS}grid": 32}
FIGURE_5 = Grid(
    where="Fig. 5",
    asks="What do convolutions (C) and the hierarchy (H) bring?",
    rows=(
        GridRow("LinGlo", {}),
        GridRow("w/o-C", _WITHOUT_C, order=-1),
        GridRow(
            "w/o-CH",
            {
                **_WITHOUT_C,
                f"{_OPTIONS}widths": [72, 72, 72, 72],
                f"{_OPTIONS}heads": [3, 3, 3, 3],
                f"{_OPTIONS}steps": [4, 1, 1, 1],
            },
            order=-1,
        ),
    ),
    note="The paper draws curves and prints no number. w/o-CH reads patches of 4 x 4 once.",
)
MIXER = Grid(
    where="Fig. 4",
    asks="Is key-only attention as good as dot-product attention at equal size?",
    rows=(
        GridRow("key-only", {}),
        GridRow("dot-product", {f"{_OPTIONS}mixer": "dot"}),
    ),
    note="The paper's Fig. 4 compares time and memory alone.",
)

LINGLO = Study(
    name="linglo",
    paper="linglo",
    about="LinGlo's ablations: which blocks, which positions, what convolutions bring.",
    recipe=CIFAR("linglo_nano"),
    data="cifar10",
    grids=(TABLE_5, TABLE_6, FIGURE_5, MIXER),
)
