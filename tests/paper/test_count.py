"""Counting, and the one test over every printed cell of every paper."""

import pytest
import torch
from torch import nn

import saccade
from saccade.models import zoo
from saccade.paper import claims, count

CLAIMS = [
    pytest.param(row, id=f"{row.name}-{row.claim.where}-{row.claim.what}-{row.claim.said}")
    for family in claims.FAMILIES
    for row in claims.rows(family)
    if row.kind == "model"
]


@pytest.mark.parametrize("row", CLAIMS)
def test_every_printed_cell(row):
    measured, claim = claims.measure(row), row.claim
    assert measured == claims.measured(row), "write anew: python -m saccade.paper.claims model"
    if measured is None:
        assert claim.number is not None, (
            "a claim that no count can answer must be a figure of a run"
        )
        assert not claim.differs, "only a measured claim can differ"
    elif claim.differs:
        assert not claim.holds(measured), f"code and paper agree on {claim}: take `differs` away"
    else:
        assert claim.holds(measured), (
            f"the paper says {claim.said}, we count {claim.show(measured)}"
        )


def test_claims_speak_of_registered_variants():
    for family in zoo.FAMILIES.values():
        assert set(family.CLAIMS) <= set(family.VARIANTS)


# Exact counts: training form whole and backbone, then deployed, in parameters; MACs at 224.
EXACT = {
    "linglo_b0": (3_813_576, 3_556_576, 3_352_032, 675_637_504),
    "linglo_b1": (14_146_984, 13_633_984, 13_224_896, 2_610_090_496),
    "linglo_b2": (25_994_792, 25_481_792, 24_654_912, None),
    "linglo_b0_chhh": (3_805_102, 3_548_102, 3_360_966, None),
    "linglo_b0_cchh": (3_711_802, 3_454_802, 3_319_890, None),
    "qna_t": (15_715_560, 15_202_560, 15_202_560, 2_423_171_968),
    "qna_t_7x7": (15_753_960, 15_240_960, 15_240_960, 2_511_230_848),
    "qna_s": (24_971_560, 24_458_560, 24_458_560, 4_344_885_120),
    "qna_b": (55_670_008, 54_901_008, 54_901_008, 9_506_359_968),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_counts(name):
    with torch.device("meta"):
        model = saccade.build(name).eval()
    whole, backbone, deployed, macs = EXACT[name]
    assert count.params(model) == whole
    assert count.params(model.backbone) == backbone
    if macs is not None:
        assert count.macs(model) == macs
    model.fuse()
    assert count.params(model.backbone) == deployed


@pytest.mark.parametrize("name", saccade.names("*_nano"))
def test_small_siblings_are_small(name):
    with torch.device("meta"):
        assert 0.4e6 < count.params(saccade.build(name, num_classes=10)) < 0.65e6


def test_flops_of_known_layers():
    conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    assert count.macs(conv, (32, 32)) == 16 * 16 * 8 * 3 * 9
    assert count.flops(conv, (32, 32)) == 2 * count.macs(conv, (32, 32))


def test_counting_leaves_the_model_as_it_was():
    model = saccade.build("linglo_nano").train()
    model.head.eval()
    modes = {name: m.training for name, m in model.named_modules()}
    forms = {name: m.form for name, m in model.named_modules() if hasattr(m, "form")}
    count.flops(model, (64, 64))
    assert modes == {name: m.training for name, m in model.named_modules()}
    assert forms == {name: m.form for name, m in model.named_modules() if hasattr(m, "form")}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_macs_do_not_depend_on_the_form_that_would_run():
    """Counted is what the paper prints; larger images would run the collapsed form."""
    model = saccade.build("linglo_nano")
    small, large = count.macs(model, (64, 64)), count.macs(model, (256, 256))
    head = model.num_features * 1000
    assert large - head == 16 * (small - head)
