import json

import numpy as np
import pytest

from saccade.data import boxes
from saccade.data.boxes.outlines import compressed, decoded, encoded, uncompressed
from saccade.recipes.recipe import Data
from tests.engine.instance_runs import outlines_folder

SIZE = 8, 6  # width and height


def mask_of(outline):
    return decoded([compressed(outline, SIZE)], SIZE)[0]


def test_three_ways_to_write_one_rectangle():
    drawn = np.zeros((6, 8), np.uint8)
    drawn[1:4, 2:5] = 1
    runs = [13, 3, 3, 3, 3, 3, 20]
    (text,) = encoded(drawn[None])
    for outline in (
        [[2, 1, 5, 1, 5, 4, 2, 4]],
        {"size": [6, 8], "counts": runs},
        {"size": [6, 8], "counts": text.decode()},
    ):
        np.testing.assert_array_equal(mask_of(outline), drawn)
    assert uncompressed(text.decode()) == runs
    two = mask_of([[0, 0, 2, 0, 2, 2, 0, 2], [4, 3, 8, 3, 8, 6, 4, 6]])
    assert two.sum() == 4 + 12


def test_text_of_many_masks_is_read_as_it_was_written():
    chance = np.random.default_rng(0)
    for _ in range(50):
        H, W = chance.integers(1, 90, 2)
        mask = (chance.random((1, H, W)) < chance.random()).astype(np.uint8)
        (text,) = encoded(mask)
        counts = uncompressed(text.decode())
        flat = np.repeat(np.arange(len(counts)) % 2, counts)
        np.testing.assert_array_equal(flat.reshape(W, H).T, mask[0])


@pytest.mark.parametrize(
    "outline",
    [
        None, 3, "ab", [], [[]], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], [["a"] * 6],
        [[float("nan")] * 6], [[True] * 6], [[1, 1, 1, 1, 1, 1]], {}, {"size": [6, 8]},
        {"size": [8, 6], "counts": [48]}, {"size": [6, 8], "counts": [48]},
        {"size": [6, 8], "counts": [1, 46]}, {"size": [6, 8], "counts": [-1, 49]},
        {"size": [6, 8], "counts": [0.0, 48.0]}, {"size": [6, 8], "counts": "zzzz~~~"},
        {"size": [6, 8], "counts": "P" * 10**5}, {"size": [6, 8], "counts": "\n\x00"},
        {"size": [6, 8], "counts": {}},
    ],
)  # fmt: skip
def test_what_is_no_outline(outline):
    assert compressed(outline, SIZE) is None


def test_far_away_points_are_cut_off():
    assert mask_of([[-1e9, -1e9, 1e9, -1e9, 1e9, 1e9, -1e9, 1e9]]).all()
    assert compressed([[1, 1, 5, 1, 5, 4]], (0, 0)) is None


def test_a_set_with_masks(tmp_path):
    folder = outlines_folder(tmp_path)
    file = folder / "annotations/instances_train.json"
    plain = json.loads(file.read_text())
    plain["annotations"][0]["segmentation"] = "scrawl"
    file.write_text(json.dumps(plain))
    splits = boxes.find(str(folder), Data(), outlines=True)
    assert any("without an outline" in sentence for sentence in splits.warnings)
    train = splits.train
    assert len(train.outlines) == len(plain["annotations"]) - 1
    seen = 0
    for i in range(len(train)):
        _, target = train.read(i)
        assert target["masks"].shape == (len(target["boxes"]), 64, 80)
        for mask, box in zip(target["masks"], target["boxes"].tolist(), strict=True):
            rows, columns = mask.nonzero().T
            edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert [int(edge) for edge in edges] == pytest.approx(box, abs=2), "thin tips"
            seen += 1
    assert seen == len(train.outlines)
    some = train.some(np.array([2, 1]))
    assert (some.read(0)[1]["masks"] == train.read(2)[1]["masks"]).all()
    assert "masks" not in boxes.find(str(folder), Data()).train.read(1)[1]


def test_masks_follow_a_picture_of_another_size(tmp_path):
    from PIL import Image

    folder = outlines_folder(tmp_path, 2, 2)
    path = folder / "images/train/001.png"
    photo = Image.open(path)
    photo.resize((160, 128)).save(path)
    train = boxes.find(str(folder), Data(), outlines=True).train
    _, target = train.read(0)
    assert target["masks"].shape[1:] == (128, 160)
    rows, columns = target["masks"][0].nonzero().T
    x0, *_, y1 = target["boxes"][0].tolist()
    assert columns.min() == pytest.approx(x0, abs=2)
    assert rows.max() + 1 == pytest.approx(y1, abs=2)
