"""Other people's networks, counted as LinGlo's tables print them."""

import pytest

from saccade.paper import baselines


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet18_retinanet", "resnet18_semantic_fpn", "swin_tiny_retinanet"]
)
def test_a_few_cells(name):
    claim = baselines.CLAIMS[name][0]
    assert claim.holds(baselines.measure(name, claim)) is not bool(claim.differs)


@pytest.mark.slow
@pytest.mark.parametrize("name", baselines.CLAIMS)
def test_every_cell(name):
    pytest.importorskip("transformers")
    for claim in baselines.CLAIMS[name]:
        value = baselines.measure(name, claim)
        if value is None:
            assert claim.what != "params" or claim.unmeasured
        else:
            assert claim.holds(value) is not bool(claim.differs)
