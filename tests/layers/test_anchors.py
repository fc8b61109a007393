"""Anchors: as many as pixels say, of the sizes asked for, and made once."""

import pytest
import torch
from torchvision.models.detection.anchor_utils import AnchorGenerator

from saccade.layers.anchors import MOST_SIZES, Anchors, within


def test_an_anchor_by_hand():
    anchors = Anchors((8, 16), scales=2, least=4.0)
    boxes = anchors([(2, 3), (1, 2)])
    assert boxes.shape == (6 * (6 + 2), 4)
    # row 1, column 2 of the fine level: centre (20, 12); its third shape (tall), first size
    x0, y0, x1, y1 = boxes[(1 * 3 + 2) * 6 + 4].tolist()
    assert (x0 + x1) / 2 == pytest.approx(20)
    assert (y0 + y1) / 2 == pytest.approx(12)
    assert (x1 - x0) * (y1 - y0) == pytest.approx(32 * 32, rel=1e-5)
    assert (y1 - y0) / (x1 - x0) == pytest.approx(2)
    second = boxes[(1 * 3 + 2) * 6 + 3]  # square, half an octave larger
    assert float(second[2] - second[0]) == pytest.approx(32 * 2**0.5)


def test_shapes_are_torchvisions_but_for_its_rounding():
    theirs = AnchorGenerator().generate_anchors(
        [32, 32 * 2 ** (1 / 3), 32 * 2 ** (2 / 3)], [0.5, 1.0, 2.0]
    )
    assert (Anchors((8,)).shapes(8) - theirs).abs().max() <= 0.5


def test_made_once_a_size_and_not_kept_for_ever():
    anchors = Anchors((8,))
    assert anchors([(4, 4)]) is anchors([(4, 4)])
    for i in range(2 * MOST_SIZES):
        anchors([(i + 1, 1)])
    assert len(anchors._cache) == MOST_SIZES


def test_which_lie_on_the_image():
    boxes = Anchors((8,), scales=1)([(3, 4)])
    on = within(boxes, (16, 20)).reshape(3, 4, 3)
    assert on[..., 0].tolist() == [
        [True, True, False, False],
        [True, True, False, False],
        [False] * 4,
    ]
    assert within(boxes, (16, 21)).reshape(3, 4, 3)[0, :, 0].tolist() == [True, True, True, False]
    assert torch.equal(on[..., 0], on[..., 2])


def test_bad_input():
    with pytest.raises(ValueError, match="scales and least lie above 0"):
        Anchors((8,), scales=0)
