"""SASA's detectors: a small one that runs, and the number of anchors."""

import pytest
import torch

from saccade.models.retinanet import RetinaNetDetector
from saccade.models.sasa import SASA
from saccade.models.sasa_retinanet import retinanet
from saccade.paper.count import params


@pytest.mark.parametrize("kind", ["conv", "attention"])
def test_a_small_one_gives_a_prediction_per_place_and_learns(kind):
    backbone = SASA((1, 1, 1, 1), (8, 8, 16, 16), heads=2, window=3, stem="conv", expand=2)
    model = RetinaNetDetector(
        backbone, 3, fpn=kind, heads=kind, coarse="P5", norm=True, dim=32, scales=1,
        init="retinanet",
    )  # fmt: skip
    classes, boxes = model(torch.randn(2, 3, 70, 100))
    sizes = [(9, 13), (5, 7), (3, 4), (2, 2), (1, 1)]  # P3 to P7: strides 8 to 128
    assert [tuple(x.shape) for x in classes] == [(2, 9, *size) for size in sizes]
    assert [tuple(x.shape) for x in boxes] == [(2, 12, *size) for size in sizes]
    sum(x.square().sum() for x in (*classes, *boxes)).backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None]
    assert not silent


def test_the_anchors_of_a_place_are_six():
    """With nine, the printed 33.4M would be missed."""
    with torch.device("meta"):
        assert retinanet("sasa_resnet50_conv").anchors == 6
        nine = retinanet("sasa_resnet50_conv", scales=3)
    assert round(params(nine) / 1e6, 2) == 34.07
