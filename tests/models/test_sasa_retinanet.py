"""SASA's detectors: the printed rows, and one that runs."""

import pytest
import torch

from saccade.count import flops, params
from saccade.models.sasa import SASA
from saccade.models.sasa_retinanet import CLAIMS, DETECTORS, RetinaNet

MEASURES = {"params": params, "FLOPs": lambda model: flops(model, (640, 640))}


@pytest.mark.parametrize("name", DETECTORS)
def test_what_the_paper_prints(name):
    with torch.device("meta"):
        model = DETECTORS[name]()
    for claim in CLAIMS[name]:
        if claim.what in MEASURES:
            measured = MEASURES[claim.what](model)
            assert claim.holds(measured) == (claim.differs == ""), claim.show(measured)


@pytest.mark.parametrize("kind", ["conv", "attention"])
def test_a_small_one_gives_a_prediction_per_place_and_learns(kind):
    backbone = SASA((1, 1, 1, 1), (8, 8, 16, 16), heads=2, window=3, stem="conv", expand=2)
    model = RetinaNet(backbone, classes=3, anchors=2, fpn=kind, heads=kind, dim=32)
    classes, boxes = model(torch.randn(2, 3, 70, 100))
    sizes = [(9, 13), (5, 7), (3, 4), (2, 2), (1, 1)]  # P3 to P7: strides 8 to 128
    assert [tuple(x.shape) for x in classes] == [(2, 6, *size) for size in sizes]
    assert [tuple(x.shape) for x in boxes] == [(2, 8, *size) for size in sizes]
    sum(x.square().sum() for x in (*classes, *boxes)).backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None]
    assert not silent


def test_the_anchors_of_a_place_are_six():
    """With nine, the printed 33.4M would be missed."""
    with torch.device("meta"):
        backbone = DETECTORS["sasa_retinanet50_conv"]().backbone
        assert round(params(RetinaNet(backbone, anchors=9)) / 1e6, 2) == 34.07
