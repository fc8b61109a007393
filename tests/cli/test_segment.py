"""`saccade segment`, as typed."""

import json

import pytest

from saccade import samples
from tests.engine import shared_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data, run = shared_runs.segmenter(tmp_path_factory)
    return data, run.folder


def test_pictures_and_folders(run, typed, trained, tmp_path):
    data, model = trained
    out = tmp_path / "out"
    code, message = run(
        "segment", str(data / "images" / "val"), "--model", str(model), "--out", str(out)
    )
    assert code == 0, message
    assert message.count("_overlay.png: ") == 4
    assert len(list(out.iterdir())) == 8
    code, message, beside = typed(
        "segment", str(data / "images" / "val" / "0.jpg"), "--model", str(model), "--out", str(out),
        "--json", "--window", "64",
    )  # fmt: skip
    assert code == 0, beside
    line = json.loads(message)
    picture = str(data / "images" / "val" / "0.jpg")
    words = ("segment", "--model", str(model), "--out", str(out), "--window", "64", picture)
    code, message = run(*words)  # options may come first
    assert code == 0, message
    assert "no window was needed" in message
    code, message = run(*words, "--short", "96")
    assert "no window" not in message
    assert sum(line["shares"].values()) == pytest.approx(1)
    assert line["mask"].endswith("0_mask.png")


def test_an_unreadable_picture_is_told_and_the_rest_done(run, trained, tmp_path):
    data, model = trained
    (tmp_path / "broken.png").write_bytes(b"")
    words = [str(tmp_path / "broken.png"), str(data / "images" / "val" / "1.jpg")]
    code, message = run("segment", *words, "--model", str(model), "--out", str(tmp_path / "out"))
    assert code == 1
    assert "is no readable picture" in message
    assert "1_overlay.png: " in message
    assert "Traceback" not in message


def test_without_a_model_it_takes_the_one_of_the_package(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, message = run("segment", str(samples.path("cat")))
    assert code == 0
    assert "using linglo_cifar_semantic_fpn.pets_heads_trimaps, which comes with saccade" in message
    assert "pet 7" in message  # per cent of the picture
