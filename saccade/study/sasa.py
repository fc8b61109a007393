"""SASA's tables (sections 4.1 and 5) with sasa_nano and a fifth of CIFAR-10."""

from typing import Any

from saccade.study.grid import Grid, GridRow, Study
from saccade.study.setting import CIFAR


def _options(**options: Any) -> dict[str, Any]:
    return {f"model.options.{name}": value for name, value in options.items()}


FULL = Grid(
    where="Table 1",
    asks="Can attention take the place of all convolutions?",
    rows=(
        GridRow("conv stem + attention", {}, (("sasa_resnet50_convstem", "top-1"),)),
        GridRow("convolutions", _options(attend=""), (("sasa_resnet50_conv", "top-1"),)),
        GridRow("convolutions of equal size", {"model.name": "sasa_nano_conv"}),
        GridRow("full attention", _options(stem="attention"), (("sasa_resnet50", "top-1"),)),
    ),
    note="The paper's numbers are those of ResNet-50; attention has fewer parameters there.",
)


def _stages(attend: str) -> GridRow:
    variant = "sasa_resnet50_conv" if not attend else f"sasa_resnet50_at{attend}"
    label = ", ".join(attend) if attend else "none"
    return GridRow(label, _options(attend=attend), ((variant, "val acc"),))


STAGES = Grid(
    where="Table 3",
    asks="Which stages should attend?",
    rows=(
        GridRow("1, 2, 3, 4", {}, (("sasa_resnet50_convstem", "val acc"),)),
        *(_stages(attend) for attend in ("234", "34", "4", "", "1", "12", "123")),
    ),
)
WINDOWS = Grid(
    where="Table 4",
    asks="How large should the window be?",
    rows=(
        GridRow("7", {}, (("sasa_resnet50_convstem", "top-1"),)),
        *(
            GridRow(str(k), _options(window=k), ((f"sasa_resnet50_k{k}", "top-1"),))
            for k in (3, 5, 9, 11)
        ),
    ),
)
POSITIONS = Grid(
    where="Table 5",
    asks="Which positions?",
    rows=(
        GridRow("relative", {}, (("sasa_resnet50_convstem", "val acc"),)),
        GridRow("absolute", _options(position="absolute"), (("sasa_resnet50_abspos", "val acc"),)),
        GridRow("none", _options(position="none"), (("sasa_resnet50_nopos", "val acc"),)),
    ),
)
CONTENT = Grid(
    where="Table 6",
    asks="Does attention need q . k beside q . r?",
    rows=(
        GridRow("q.k + q.r", {}, (("sasa_resnet50_convstem", "top-1"),)),
        GridRow("q.r only", _options(content=False), (("sasa_resnet50_qr", "top-1"),)),
    ),
)
STEMS = Grid(
    where="Table 7",
    asks="Where should the values of an attention stem come from?",
    rows=(
        GridRow("spatially aware", _options(stem="attention"), (("sasa_resnet50", "top-1"),)),
        GridRow(
            "pointwise", _options(stem="attention-pointwise"),
            (("sasa_resnet50_stem_pointwise", "top-1"),),
        ),
        GridRow(
            "convolution", _options(stem="attention-conv"),
            (("sasa_resnet50_stem_conv", "top-1"),),
        ),
    ),
)  # fmt: skip
BORDER = Grid(
    where="3.2",
    asks="Are pixels outside of the map left out, or zeros that take part?",
    rows=(GridRow("left out"), GridRow("zeros", _options(border="zero"))),
    note="The paper leaves it open (docs/training.md).",
)

SASA = Study(
    name="sasa",
    paper="sasa",
    about="SASA's tables: attention for convolution, where, how wide, which positions and stems.",
    recipe=CIFAR("sasa_nano"),
    data="cifar10",
    grids=(FULL, STAGES, WINDOWS, POSITIONS, CONTENT, STEMS, BORDER),
)
