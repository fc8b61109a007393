"""Pictures in, overlays and masks out."""

import numpy as np
import pytest
from PIL import Image

from saccade.draw.masks import overlay
from saccade.draw.palette import palette
from saccade.infer.segment import ids, segmented
from saccade.recipes.recipe import change
from saccade.tasks.segment.task import SegmentTask
from tests.data.scenes import NAMES, folder
from tests.engine.classify_runs import fit
from tests.engine.classify_runs import folder as classes
from tests.engine.dense_runs import SEGMENT


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    legend = {"classes": dict(zip((3, 7, 200), NAMES, strict=True))}
    data = folder(tmp_path_factory.mktemp("sea"), ids=(3, 7, 200), **legend)
    out = tmp_path_factory.mktemp("runs") / "run"
    return fit(change(SEGMENT, schedule__epochs=6), data, out), data


def test_each_picture_gets_an_overlay_and_a_mask(run, tmp_path):
    run, data = run
    found = dict(segmented([str(data / "images" / "val")], run.folder, tmp_path / "out", "cpu"))
    assert len(found) == 4
    for file, made in found.items():
        photo = Image.open(file)
        mask = np.array(Image.open(made.mask))
        assert mask.shape == (photo.height, photo.width)
        assert set(np.unique(mask)) <= {3, 7, 200}, "ids as the training set has them"
        truth = np.array(Image.open(file.replace("images", "masks").replace(".jpg", ".png")))
        assert (mask == truth).mean() > 0.5  # of three classes
        assert sum(made.shares.values()) == pytest.approx(1)
        with Image.open(made.overlay) as drawn:
            assert drawn.width > photo.width + 40
            assert drawn.height >= photo.height


def test_names_do_not_collide_and_the_unreadable_is_told(run, tmp_path):
    run, data = run
    (tmp_path / "0.jpg").write_bytes(b"no picture")
    words = [str(data / "images" / split / "0.jpg") for split in ("train", "val")]
    found = list(segmented([words[0], str(tmp_path / "0.jpg"), words[1]], run.folder, tmp_path))
    assert "is no readable picture" in found[1][1]
    assert [made.mask.name for _, made in (found[0], found[2])] == ["0_mask.png", "0-2_mask.png"]


def test_large_pictures_through_windows(run, tmp_path, monkeypatch):
    run, data = run
    word = str(data / "images" / "val" / "0.jpg")
    seen = []
    whole = SegmentTask.through_windows
    monkeypatch.setattr(
        SegmentTask, "through_windows", lambda *a: seen.append(a[1].shape[2:]) or whole(*a)
    )
    ((_, made),) = segmented([word], run.folder, tmp_path, window=64)
    assert max(made.size) <= 64
    assert not seen
    ((_, made),) = segmented([word], run.folder, tmp_path, window=64, short=96)
    assert seen == [made.size]
    assert min(made.size) == 96
    with Image.open(word) as photo, Image.open(made.mask) as mask:
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
    found = np.zeros((40, 60), np.uint8)
    found[:, 30:] = 2
    drawn = np.asarray(overlay(photo, found, ["sky", "sea", "boat"])).astype(float)
    for x, c in ((10, 0), (50, 2)):
        wanted = 0.4 * 100 + 0.6 * palette(3)[c].astype(float)
        assert np.abs(drawn[20, x] - wanted).max() < 1
    assert (drawn[20, 29] == 255).all(), "a line between regions"
    legend = drawn[:, 60:].reshape(-1, 3)
    for c, there in ((0, True), (1, False), (2, True)):
        assert (legend == palette(3)[c]).all(1).any() == there, "the classes it holds, no others"


def test_many_classes_need_a_long_legend():
    found = np.arange(100, dtype=np.uint8).reshape(10, 10).repeat(4, 0).repeat(4, 1)
    drawn = overlay(Image.new("RGB", (40, 40)), found, [f"class number {i}" for i in range(100)])
    assert drawn.height > 100 * 13


def test_ids_above_255_take_16_bits(tmp_path):
    found = np.array([[0, 1]], np.uint8)
    ids(found, [4, 300]).save(tmp_path / "m.png")
    assert np.array(Image.open(tmp_path / "m.png")).tolist() == [[4, 300]]
    assert ids(found, [4, 9]).mode == "L"
