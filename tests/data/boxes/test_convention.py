"""Boxes that are written in another way than COCO's, told by all of them together."""

import json

import numpy as np
import pytest

from saccade.data.boxes import every
from tests.data.conftest import photo

SIZE = W, H = 160, 120


@pytest.fixture
def read(tmp_path):
    """Read a set of these boxes, x y w h; gives how many were taken."""
    photo(tmp_path / "a.png", 0, SIZE)

    def call(boxes, **more):
        rows = [
            {"id": i, "image_id": 1, "category_id": 1, "bbox": [float(v) for v in box], **more}
            for i, box in enumerate(boxes, 1)
        ]
        lists = {
            "images": [{"id": 1, "file_name": "a.png", "width": W, "height": H}],
            "annotations": rows,
            "categories": [{"id": 1, "name": "cat"}],
        }
        (tmp_path / "a.json").write_text(json.dumps(lists))
        images = every(str(tmp_path), ["cat"])
        return int(images.counts()[0])

    return call


def drawn(count=30, least=4, most=60, seed=0):
    chance = np.random.default_rng(seed)
    w, h = chance.uniform(least, most, (2, count))
    return np.stack([chance.uniform(0, W - w), chance.uniform(0, H - h), w, h], 1)


def corners(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)


@pytest.mark.parametrize("seed", range(5))
def test_right_ones_are_taken(read, seed):
    assert read(drawn(seed=seed)) == 30
    large = drawn(least=100, most=115, seed=seed)  # wider than they are far from the border
    assert read(large) == 30
    careless = drawn(seed=seed) + np.random.default_rng(seed).uniform(-2, 2, (30, 4))
    assert read(careless) == 30
    assert read([[0, 0, W, H]] * 5) == 5
    assert read([[0, 0, 1, 1], *drawn(seed=seed)]) == 31, "one of one pixel"


@pytest.mark.parametrize("count", [1, 5, 30])
def test_shares_of_the_picture_are_refused(read, count):
    for boxes in (drawn(count), drawn(count, 0.5, 0.9), corners(drawn(count))):
        with pytest.raises(ValueError, match=r"a.json': 100% of its boxes .* multiply x and w by"):
            read(boxes / [W, H, W, H])


@pytest.mark.parametrize("count", [6, 30])
def test_corners_are_refused(read, count):
    with pytest.raises(ValueError, match=r"a.json': its boxes are two corners.*write x0, y0, x1"):
        read(corners(drawn(count)))


def test_areas_tell_corners_too(read):
    """All in the upper left quarter, where nothing reaches beyond the picture."""
    boxes = np.array([[20.0, 20, 10, 10], [30, 10, 10, 10], [10, 15, 10, 10], [25, 25, 10, 10]])
    assert read(corners(boxes)) == 4, "nothing says what they are"
    assert read(boxes, area=100) == 4
    with pytest.raises(ValueError, match="two corners"):
        read(corners(boxes), area=100)


def test_a_few_prove_nothing(read):
    assert read([[100, 60, 150, 100]]) == 1


def test_boxes_without_a_size_say_nothing(read):
    assert read([*drawn(5), *np.zeros((20, 4))]) == 5
