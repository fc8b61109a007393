"""Table 1's measures tell apart what they are made to tell apart."""

import pytest
from torch import nn

from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.sasa import StandAloneAttention
from saccade.models import zoo
from saccade.paper import properties


def rows_last(layer):
    return lambda x: layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("layer", "content", "everywhere"),
    [
        (nn.Conv2d(8, 8, 3, padding=1), False, False),
        (nn.Conv2d(8, 8, 31, padding=15), False, True),
        (StandAloneAttention(8, heads=2, window=3), True, False),
        (KeyOnlyAttention(8, 2), True, True),
    ],
)
def test_layers(layer, content, everywhere):
    layer.double()
    layer = rows_last(layer) if isinstance(layer, KeyOnlyAttention) else layer
    shape = (8, 10, 10)
    assert properties.is_content_based(layer, shape) is content
    assert properties.is_global(layer, shape) is everywhere


def test_growth_of_cost():
    assert properties.growth("linglo_nano") == pytest.approx(4)
    assert properties.growth("linglo_b0_dot") > 10


OWN = [name for name in properties.NAMES if name not in properties.BASELINES]
SMALL = [name for name in OWN if name.endswith(("_nano", "_cifar"))]


@pytest.mark.parametrize(
    "name", [*SMALL, *(pytest.param(n, marks=pytest.mark.slow) for n in OWN if n not in SMALL)]
)
def test_every_model_of_the_zoo(name):
    """Attention is content-based everywhere; key-only and dot-product attention see everything."""
    row = properties.measured(name)
    attends = not name.endswith("_conv") or "stem" in name
    stages = list(range(1, len(zoo.build(name, device="meta").backbone.stages) + 1))
    letters = {"linglo_b0_chhh": [2, 3, 4], "linglo_b0_cchh": [3, 4]}
    if name.startswith("sasa_resnet50_at"):
        stages = [int(n) for n in name.removeprefix("sasa_resnet50_at")]
    stages = letters.get(name, stages)
    assert row["content"] == (stages if attends else [])
    assert row["global"] == (stages if name.startswith("linglo") else [])
    assert (row["growth"] <= properties.LINEAR) is ("dot" not in name)


def test_the_table_of_any_names(capsys):
    properties.main(["linglo_nano", "sasa_nano"])
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[0] == "model"
    assert [line.split()[:5] for line in lines] == [
        ["linglo_nano", "yes", "yes", "yes", "1,"],
        ["sasa_nano", "yes", "yes", "no"],
    ]
    with pytest.raises(SystemExit, match="no model named 'linglo_nan'; did you mean"):
        properties.main(["linglo_nan"])
