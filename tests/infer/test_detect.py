"""A detector from a folder to boxes on pictures, by the same loop as any other task."""

import json
import os
import signal
from pathlib import Path

import pytest
from PIL import Image

from saccade.engine import session
from saccade.engine.checkpoint import Checkpoints
from saccade.infer.detect import Detector, Numbers
from saccade.infer.files import pictures
from saccade.recipes.recipe import change
from tests.engine import shared_runs
from tests.engine.classify_runs import PLAIN, At, apart, fit, folder, same
from tests.engine.detect_runs import FIRST, THINGS, boxes_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return shared_runs.detector(tmp_path_factory)


@pytest.fixture(scope="module")
def data(trained):
    return trained[0]


@pytest.fixture(scope="module")
def run(trained):
    return trained[1]


def test_it_learns_and_says_so(run, data):
    (line,) = run.lines()
    assert line["val"]["AP50"] > 50, line
    assert next(iter(line["val"])) == "AP"
    assert set(run.read_json("tables.json")["per_class"][0]) >= {"class", "AP", "AP50", "boxes"}
    again = session.evaluate(run.folder).compute()
    assert again["AP"] == pytest.approx(line["val"]["AP"], abs=1e-6)
    moved = session.evaluate(run.folder / "model.safetensors", str(data)).compute()
    assert moved["AP"] == pytest.approx(again["AP"], abs=1e-6)


def test_boxes_are_in_the_pictures_own_pixels(run, data):
    truth = json.loads((data / "annotations" / "instances_val.json").read_text())
    detector = Detector(run.folder)
    assert detector.ids == [FIRST, FIRST + 1]
    for scale in (1, 2):  # a larger copy is seen at the same size
        near = 0
        for entry in truth["images"]:
            photo = Image.open(data / "images" / "val" / entry["file_name"]).convert("RGB")
            photo = photo.resize((scale * photo.width, scale * photo.height))
            x, y, right, bottom = (detector(photo).boxes[0] / scale).tolist()
            own = [a["bbox"] for a in truth["annotations"] if a["image_id"] == entry["id"]]
            middle = (x + right) / 2, (y + bottom) / 2
            near += any(
                abs(middle[0] - a - w / 2) + abs(middle[1] - b - h / 2) < 8 for a, b, w, h in own
            )
        assert near >= 3, scale


def test_results_are_cocos(run, data):
    detector = Detector(run.folder)
    paths = [*pictures(str(data / "images" / "val"), "detect"), Path("gone.png")]
    seen = list(detector.over(paths, score=0.2))
    assert [s.path.name for s in seen] == ["001.png", "002.png", "003.png", "004.png", "gone.png"]
    assert "gone.png" in seen[-1].error
    rows = [row for i, s in enumerate(seen[:-1], 1) for row in detector.coco(i, s.boxes)]
    assert {row["category_id"] for row in rows} <= {FIRST, FIRST + 1}
    assert all(row["bbox"][2] > 0 and 0.2 <= row["score"] <= 1 for row in rows)
    assert all(row["score"] >= 0.2 for row in rows)
    photo = Image.open(seen[0].path).convert("RGB")
    assert len(detector(photo, score=0.001).scores) > len(detector(photo).scores)
    assert detector(photo).scores.min() >= detector.task.score == 0.05


def test_ids_of_pictures(data, tmp_path):
    numbers = Numbers()
    assert numbers.of(Path("001.png"), 5) == 1
    assert numbers.of(Path("cat.png"), 5) == 5
    assert numbers.of(Path("dog.png"), 5) == 6
    named = Numbers(data / "annotations" / "instances_val.json")
    assert [named.of(Path(f"elsewhere/00{i}.png"), 9) for i in (2, 1)] == [2, 1]
    with pytest.raises(ValueError, match=r"list no picture 'cat\.png'"):
        named.of(Path("cat.png"), 1)


@pytest.mark.slow
def test_figures_do_not_depend_on_who_shares_a_batch(tmp_path):
    """Key-only attention looks at a whole image; padding would be looked at too."""
    place = boxes_folder(tmp_path / "things")
    file = place / "annotations" / "instances_val.json"
    content = json.loads(file.read_text())
    for i, image in enumerate(content["images"]):  # four sizes
        photo = Image.open(place / "images" / "val" / image["file_name"])
        image["height"] = 64 + 12 * i
        photo.crop((0, 0, 80, 64 + 12 * i)).save(place / "images" / "val" / image["file_name"])
    file.write_text(json.dumps(content))
    recipe = change(THINGS, model__name="linglo_nano", schedule__epochs=20, optim__lr=4e-3)
    run = fit(change(recipe, loop__evaluate_every=20), place, tmp_path / "run")
    figures = run.lines()[-1]["val"]
    assert figures["AP50"] > 0
    for batch in (1, 2, 64):
        again = session.evaluate(run.folder, batch=batch).compute()
        assert again["AP"] == pytest.approx(figures["AP"], abs=1e-3), batch


@pytest.mark.slow
def test_a_killed_detector_goes_on_as_if_nothing_had_been(data, tmp_path):
    recipe = change(THINGS, loop__save_every=1)
    whole = fit(recipe, data, tmp_path / "whole")
    kill = At(3, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert apart(fit, recipe, data, tmp_path / "part", kill) == [-signal.SIGKILL]
    session.resume(tmp_path / "part", device="cpu")
    ends = [Checkpoints(place).load()[0] for place in (whole.folder, tmp_path / "part")]
    assert same(*ends) is None


def test_a_backbone_that_has_learnt_classes_starts_a_detector(data, tmp_path):
    classifier = fit(
        change(PLAIN, model__name="sasa_nano_conv", schedule__epochs=1),
        folder(tmp_path / "colours"),
        tmp_path / "c",
    )
    recipe = change(THINGS, schedule__epochs=1, model__start=str(classifier.folder))
    fit(recipe, data, tmp_path / "d")
    with pytest.raises(ValueError, match=r"model\.start"):
        fit(change(recipe, model__name="sasa_nano"), data, tmp_path / "e")
    with pytest.raises(ValueError, match="was trained to classify; use 'saccade predict'"):
        Detector(classifier.folder)
    with pytest.raises(ValueError, match="no simple model to compare with"):
        fit(change(THINGS, loop__baseline=True), data, tmp_path / "f")
