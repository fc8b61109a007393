"""Every printed cell about a detector; the names that recipes and papers share."""

import pytest

from saccade.models import detectors, zoo
from saccade.paper import claims, count
from saccade.paper.runs import FIGURES
from saccade.recipes import book

CELLS = [
    pytest.param(name, claim, id=f"{name}-{claim.what}")
    for name, cells in detectors.CLAIMS.items()
    for claim in cells
]


@pytest.mark.parametrize(("name", "claim"), CELLS)
def test_every_printed_cell(name, claim):
    measured = count.measure_detector(name, claim)
    if measured is None:
        assert claim.what in FIGURES
        assert claim.number is not None
        assert not claim.differs
    else:
        assert claim.holds(measured) == (claim.differs == ""), claim.show(measured)
        row = claims.ClaimRow("", "detector", name, claim)
        assert measured == claims.measured(row), "write anew: python -m saccade.paper.claims"


def test_names():
    assert set(detectors.CLAIMS) <= set(detectors.DETECTORS)
    assert not set(detectors.DETECTORS) & set(zoo.VARIANTS)
    assert detectors.names("qna") == []  # whose figures are a run's alone
    assert "linglo_b0_retinanet" in detectors.names("linglo")


@pytest.mark.parametrize("name", sorted(set(detectors.DETECTORS) & set(book.RECIPES)))
def test_a_recipe_of_that_name_trains_that_detector(name):
    import torch

    from saccade import tasks

    recipe = book.find(name)
    with torch.device("meta"):
        printed = detectors.DETECTORS[name]()
        trained = tasks.of(recipe).network(recipe, printed.num_classes, {})
    shapes = {k: v.shape for k, v in printed.state_dict().items()}
    assert shapes == {k: v.shape for k, v in trained.state_dict().items()}
    expected, got = (net.arguments.get("settings", net.arguments) for net in (printed, trained))
    assert expected == {key: value for key, value in got.items() if key in expected}
