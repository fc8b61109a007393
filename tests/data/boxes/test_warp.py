import math

import pytest
import torch
from torchvision import tv_tensors

from saccade.data.boxes.warp import Warp, around, boxes_of
from tests.data.boxes.test_mosaic import painted

ALL = {"rotate": 30, "shift": 0.2, "zoom": (0.6, 1.5), "shear": 10, "perspective": 0.3}
NONE = {"rotate": 0, "shift": 0, "zoom": (1.0, 1.0), "shear": 0, "perspective": 0}


def plain(target):
    return {key: value for key, value in target.items() if key != "masks"}


@pytest.mark.parametrize("seed", range(25))
def test_a_rectangle_stays_in_its_box(seed):
    """All that is bright lies in the box; and the box is no larger, where nothing was cut off."""
    torch.manual_seed(seed)
    image, target = painted(255, 60, 80, seed)
    warp = Warp(**ALL, fill=(0, 0, 0))
    warped, moved = warp(image, plain(target))
    assert warped.shape == image.shape
    bright = warped[0] > 127
    if not len(moved["boxes"]):
        assert bright.sum() < 0.35 * target["masks"].sum() * 2.25, "hardly anything is left"
        return
    (x0, y0, x1, y1), (rows, columns) = moved["boxes"][0].tolist(), bright.nonzero().T
    assert 0 <= x0 < x1 <= 80
    assert 0 <= y0 < y1 <= 60
    assert columns.min() + 1 > x0
    assert columns.max() < x1
    assert rows.min() + 1 > y0
    assert rows.max() < y1
    if x0 > 0 and y0 > 0 and x1 < 80 and y1 < 60:
        torch.manual_seed(seed)
        corners = around(target["boxes"].as_subclass(torch.Tensor), warp.matrix(60, 80))[0]
        assert corners.tolist() == pytest.approx([x0, y0, x1, y1], abs=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_a_mask_moves_with_its_pixels_and_its_box_is_tight(seed):
    torch.manual_seed(seed)
    image, target = painted(255, 60, 80, seed)
    warped, moved = Warp(**ALL, fill=(0, 0, 0))(image, target)
    if not len(moved["boxes"]):
        return
    mask, bright = moved["masks"][0].bool(), warped[0] > 127
    assert (mask != bright).sum() <= 0.12 * mask.sum() + 8, "but for blended edges"
    rows, columns = mask.nonzero().T
    edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert moved["boxes"][0].tolist() == [int(edge) for edge in edges]


@pytest.mark.parametrize(
    ("change", "becomes"),
    [
        ({}, [20, 10, 40, 30]),
        ({"zoom": (2.0, 2.0)}, [0, 0, 40, 30]),  # about the centre, (40, 30)
        ({"zoom": (0.5, 0.5)}, [30, 20, 40, 30]),
    ],
)
def test_boxes_by_hand(change, becomes):
    image = torch.zeros(3, 60, 80, dtype=torch.uint8)
    image[:, 10:30, 20:40] = 255
    kind = tv_tensors.BoundingBoxes
    boxes = kind([[20.0, 10, 40, 30]], format="XYXY", canvas_size=(60, 80))
    target = {"boxes": boxes, "labels": torch.tensor([3])}
    warped, moved = Warp(**{**NONE, **change}, fill=(9, 9, 9))(tv_tensors.Image(image), target)
    assert moved["boxes"].tolist() == [pytest.approx(becomes, abs=1e-4)]
    rows, columns = (warped[0] > 127).nonzero().T
    assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == becomes
    assert moved["labels"].tolist() == [3]
    if change == {"zoom": (0.5, 0.5)}:
        assert warped[0, 0, 0] == 9, "beyond the image lies the fill"


def test_a_quarter_turn():
    turn = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]).double()
    (box,) = around(torch.tensor([[1.0, 2, 5, 3]]), turn).tolist()
    assert box == [-3, 1, -2, 5]


def test_what_leaves_the_image_is_gone_with_its_label():
    image, _ = painted(255, 60, 80)
    kind = tv_tensors.BoundingBoxes
    corners = [[0.0, 0, 5, 5], [30, 20, 50, 40], [79, 59, 80, 60]]
    target = {
        "boxes": kind(corners, format="XYXY", canvas_size=(60, 80)),
        "labels": torch.arange(3),
    }
    _, moved = Warp(**{**NONE, "zoom": (2.0, 2.0)}, fill=(0, 0, 0))(image, target)
    assert moved["labels"].tolist() == [1]
    empty = {"boxes": kind(torch.zeros(0, 4), format="XYXY", canvas_size=(60, 80)),
             "labels": torch.arange(0)}  # fmt: skip
    _, moved = Warp(**ALL, fill=(0, 0, 0))(image, empty)
    assert moved["boxes"].shape == (0, 4)


def test_angles_and_shifts_reach_what_was_asked():
    torch.manual_seed(0)
    warp = Warp(30, 0.25, (1.0, 1.0), 0, 0, (0, 0, 0))
    matrices = torch.stack([warp.matrix(100, 200) for _ in range(300)])
    angles = torch.rad2deg(torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]))
    assert 27 < angles.max() <= 30.001
    assert -30.001 <= angles.min() < -27
    centres = matrices @ torch.tensor([100.0, 50, 1]).double()
    assert 45 < (centres[:, 0] - 100).abs().max() <= 50
    assert 22 < (centres[:, 1] - 50).abs().max() <= 25
    assert math.isclose(float(matrices[0, 2, 2]), 1)


def test_boxes_around_masks():
    masks = torch.zeros(3, 6, 8, dtype=torch.uint8)
    masks[0, 2:5, 1:7] = 1
    masks[1, 0, 7] = 1
    boxes, full = boxes_of(masks, torch.full((3, 4), 9.0))
    assert boxes.tolist() == [[1, 2, 7, 5], [7, 0, 8, 1], [9, 9, 9, 9]]
    assert full.tolist() == [True, True, False]
