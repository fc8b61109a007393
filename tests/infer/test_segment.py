"""Pictures in, overlays and masks out."""

import numpy as np
import pytest
from PIL import Image

from saccade.draw.masks import overlay
from saccade.draw.palette import palette
from saccade.infer.segment import ids, segmented
from saccade.recipes.recipe import change
from saccade.tasks.segment.task import SegmentTask
from tests.engine import shared_runs
from tests.engine.classify_runs import fit
from tests.engine.classify_runs import folder as classes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data, run = shared_runs.segmenter(tmp_path_factory)
    return run, data


def test_each_picture_gets_an_overlay_and_a_mask(run, tmp_path):
    run, data = run
    results = dict(segmented([str(data / "images" / "val")], run.folder, tmp_path / "out", "cpu"))
    assert len(results) == 4
    for file, result in results.items():
        photo = Image.open(file)
        mask = np.array(Image.open(result.mask))
        assert mask.shape == (photo.height, photo.width)
        assert set(np.unique(mask)) <= {3, 7, 200}, "ids as the training set has them"
        truth = np.array(Image.open(file.replace("images", "masks").replace(".jpg", ".png")))
        assert (mask == truth).mean() > 0.5  # of three classes
        assert sum(result.shares.values()) == pytest.approx(1)
        with Image.open(result.overlay) as drawn:
            assert drawn.width > photo.width + 40
            assert drawn.height >= photo.height


def test_names_do_not_collide_and_the_unreadable_is_told(run, tmp_path):
    run, data = run
    (tmp_path / "0.jpg").write_bytes(b"no picture")
    words = [str(data / "images" / split / "0.jpg") for split in ("train", "val")]
    results = list(segmented([words[0], str(tmp_path / "0.jpg"), words[1]], run.folder, tmp_path))
    assert "is no readable picture" in results[1][1]
    assert [result.mask.name for _, result in (results[0], results[2])] == [
        "0_mask.png",
        "0-2_mask.png",
    ]


def test_large_pictures_through_windows(run, tmp_path, monkeypatch):
    run, data = run
    word = str(data / "images" / "val" / "0.jpg")
    seen = []
    whole = SegmentTask.through_windows
    monkeypatch.setattr(
        SegmentTask, "through_windows", lambda *a: seen.append(a[1].shape[2:]) or whole(*a)
    )
    ((_, result),) = segmented([word], run.folder, tmp_path, window=64)
    assert max(result.size) <= 64
    assert not seen
    ((_, result),) = segmented([word], run.folder, tmp_path, window=64, short=96)
    assert seen == [result.size]
    assert min(result.size) == 96
    with Image.open(word) as photo, Image.open(result.mask) as mask:
        assert mask.size == photo.size
    with pytest.raises(ValueError, match="32 pixels or more"):
        next(segmented([word], run.folder, tmp_path, short=5))
    with pytest.raises(ValueError, match="64 pixels wide or more"):
        next(segmented([word], run.folder, tmp_path, window=5))


def test_other_models_are_sent_elsewhere(tmp_path):
    from tests.engine.classify_runs import PLAIN

    data = classes(tmp_path / "data")
    other = fit(change(PLAIN, schedule__epochs=1), data, tmp_path / "run")
    with pytest.raises(ValueError, match="was trained to classify; use 'saccade predict' with it"):
        next(segmented([str(data / "val")], other.folder, tmp_path))


def test_the_overlay_is_the_picture_the_colours_and_a_legend():
    photo = Image.new("RGB", (60, 40), (100, 100, 100))
    mask = np.zeros((40, 60), np.uint8)
    mask[:, 30:] = 2
    drawn = np.asarray(overlay(photo, mask, ["sky", "sea", "boat"])).astype(float)
    for x, c in ((10, 0), (50, 2)):
        expected = 0.4 * 100 + 0.6 * palette(3)[c].astype(float)
        assert np.abs(drawn[20, x] - expected).max() < 1
    assert (drawn[20, 29] == 255).all(), "a line between regions"
    legend = drawn[:, 60:].reshape(-1, 3)
    for c, there in ((0, True), (1, False), (2, True)):
        assert (legend == palette(3)[c]).all(1).any() == there, "the classes it holds, no others"


def test_many_classes_need_a_long_legend():
    mask = np.arange(100, dtype=np.uint8).reshape(10, 10).repeat(4, 0).repeat(4, 1)
    drawn = overlay(Image.new("RGB", (40, 40)), mask, [f"class number {i}" for i in range(100)])
    assert drawn.height > 100 * 13


def test_ids_above_255_take_16_bits(tmp_path):
    mask = np.array([[0, 1]], np.uint8)
    ids(mask, [4, 300]).save(tmp_path / "m.png")
    assert np.array(Image.open(tmp_path / "m.png")).tolist() == [[4, 300]]
    assert ids(mask, [4, 9]).mode == "L"
