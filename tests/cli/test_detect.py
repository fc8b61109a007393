"""`saccade detect`, as typed."""

import json

import pytest
from PIL import Image

from tests.engine import shared_runs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("typed")
    data, trained = shared_runs.detector(tmp_path_factory)
    (place / "runs").mkdir()
    data.rename(place / "things")
    trained.folder.rename(place / "runs" / "detect")
    return place


@pytest.mark.slow
def test_pictures_and_results(run, place, monkeypatch):
    monkeypatch.chdir(place)
    code, out = run("detect", "things/images/val", "--score", "0.1")
    assert code == 0, out
    assert sorted(p.name for p in (place / "detected").glob("*.png")) == [
        "001.png", "002.png", "003.png", "004.png",
    ]  # fmt: skip
    assert Image.open("detected/001.png").size == Image.open("things/images/val/001.png").size
    rows = json.loads((place / "detected" / "results.json").read_text())
    assert {row["image_id"] for row in rows} <= {1, 2, 3, 4}
    code, out = run("detect", "things/images/val/002.png", "--json", "--score", "0.1")
    assert json.loads(out) == [row for row in rows if row["image_id"] == 2]
    every = [
        json.loads(run("detect", "things/images/val", "--json", "--batch", str(n))[1])
        for n in (1, 3)
    ]
    for one, three in zip(*every, strict=True):
        assert (one["image_id"], one["category_id"]) == (three["image_id"], three["category_id"])
        assert one["bbox"] == pytest.approx(three["bbox"], abs=0.05)
    code, out = run("eval", "runs/detect")
    assert code == 0
    assert "AP75" in out
    assert "slab" in out, "a row for each class"


def test_eval_writes_down_what_is_wrong(run, place, monkeypatch):
    monkeypatch.chdir(place)
    code, out = run("eval", "runs/detect", "--batch", "2")
    assert code == 0, out
    assert "look: runs/detect/eval/report.html" in out
    assert {"report.html", "results.json", "truth.json", "images.json", "confusion.png"} <= {
        file.name for file in (place / "runs/detect/eval").iterdir()
    }
    model = "runs/detect/model.safetensors"
    code, out = run("eval", model, "--data", "things", "--out", "told", "--json")
    assert code == 0, out
    assert json.loads(out)["files"][0] == "told/report.html"
    code, out = run("eval", model, "--data", "things")
    assert "--out FOLDER writes" in out
    code, out = run("eval", "runs/detect", "--tta", "--out", "views")
    assert code == 0, out
    assert json.loads((place / "views/figures.json").read_text())["figures"]["images"] == 4


def test_labels_and_crops(run, place, monkeypatch):
    monkeypatch.chdir(place)
    words = ("things/images/val", "--model", "runs/detect", "--score", "0.1", "--out", "objects")
    code, out = run("detect", *words, "--save-txt", "--crops")
    assert code == 0, out
    lines = {
        file.stem: file.read_text().splitlines()
        for file in (place / "objects/labels").glob("00*.txt")
    }
    assert sorted(lines) == ["001", "002", "003", "004"]
    assert (place / "objects/labels/classes.txt").read_text() == "disc\nslab\n"
    crops = list((place / "objects/crops").glob("*/*.png"))
    assert len(crops) == sum(map(len, lines.values())) > 0
    code, out = run("detect", *words, "--save-txt", "--json")
    assert code == 1
    assert "leave out --json" in out


def test_every_picture_has_an_id_of_its_own(run, place, monkeypatch):
    monkeypatch.chdir(place)
    photo = Image.open("things/images/val/001.png")
    (place / "odd").mkdir()
    for name in ("2.png", "b.png", "3.png", "c.png"):  # b's place is 2 as well
        photo.save(place / "odd" / name)
    files = [f"odd/{name}" for name in ("2.png", "b.png", "3.png", "c.png")]
    code, out = run("detect", *files, "--out", "odd-found")
    assert code == 0, out
    named = json.loads((place / "odd-found" / "images.json").read_text())
    assert sorted(named.values()) == sorted(files)


def test_nobodys_picture_is_drawn_over(run, place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "mine").mkdir()
    for name in ("frame_9.png", "frame_10.png"):
        Image.open("things/images/val/001.png").save(place / "mine" / name)
    before = (place / "mine" / "frame_9.png").read_bytes()
    code, out = run("detect", "mine", "--out", "mine")
    assert code == 0, out
    assert (place / "mine" / "frame_9.png").read_bytes() == before
    assert (place / "mine" / "frame_9_boxes.png").is_file()
    named = json.loads((place / "mine" / "images.json").read_text())
    assert named == {"1": "mine/frame_9.png", "2": "mine/frame_10.png"}, "in their order"
    for _ in range(2):  # what is drawn inside is not looked at again
        code, out = run("detect", "things/images", "--out", "things/images/found")
        assert "in 12 pictures" in out


def test_results_outlive_what_breaks_off(run, place, monkeypatch):
    monkeypatch.chdir(place)
    annotations = str(place / "things" / "annotations" / "instances_val.json")
    Image.open("things/images/val/001.png").save(place / "stranger.png")
    words = ["things/images/val/003.png", "stranger.png", "--annotations", annotations]
    code, out = run("detect", *words, "--out", "half")
    assert code == 1
    assert "list no picture 'stranger.png'" in out
    assert json.loads((place / "half" / "images.json").read_text()) == {
        "3": "things/images/val/003.png"
    }


def test_what_is_wrong_is_said(run, place, monkeypatch):
    monkeypatch.chdir(place)
    code, out = run("detect", "gone.png", "things/images/val/001.png")
    assert code == 1
    assert "gone.png" in out
    code, out = run("detect", "things/images/val", "--score", "7")
    assert code == 1
    assert "0..1" in out
    code, out = run("predict", "things/images/val/001.png", "--json")
    assert len(json.loads(out.splitlines()[0])["guesses"]) == 5, (
        "of what comes with the package: a detector names none"
    )
    code, out = run("predict", "things/images/val/001.png", "--model", "runs/detect")
    assert "use 'saccade detect'" in out
