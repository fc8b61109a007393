"""`saccade predict`, as typed."""

import io
import json

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six pictures; the third is damaged."""
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(6):
        pixels = chance.integers(0, 255, (90, 120 - 10 * (i % 2), 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / "2.png").write_bytes(b"\x89PNG")
    return [f"photos/{i}.png" for i in range(6)]


def answers(out):
    return [json.loads(line) for line in out.splitlines()]


def test_a_damaged_picture_is_named_skipped_and_counted(typed, photos):
    code, out, err = typed("predict", "photos", "--json", "--batch", "2", "--model", "linglo_nano")
    assert code == 1
    rows = answers(out)
    assert [row["file"] for row in rows] == photos
    assert ["error" in row for row in rows] == [False, False, True, False, False, False]
    assert err.splitlines()[0].startswith("'photos/2.png' is no readable picture")
    assert err.splitlines()[1:] == ["1 of 6 pictures cannot be read and are skipped"]


def test_a_batch_says_what_one_picture_says(typed, photos):
    together = answers(typed("predict", "photos/[01345].png", "--json")[1])
    alone = [answers(typed("predict", file, "--json")[1])[0] for file in photos if "2" not in file]
    assert [row["file"] for row in together] == [row["file"] for row in alone]
    for a, b in zip(together, alone, strict=True):
        assert [g["label"] for g in a["guesses"]] == [g["label"] for g in b["guesses"]]
        shares = [[g["share"] for g in row["guesses"]] for row in (a, b)]
        assert shares[0] == pytest.approx(shares[1], abs=1e-5)


def test_a_list_on_stdin(typed, photos, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("photos/4.png\nphotos/0.png\n"))
    code, out, err = typed("predict", "-", "--top", "1")
    assert code == 0
    assert err.startswith("no trained run in runs/: using "), "a note, and nothing else"
    assert len(err.splitlines()) == 1
    assert [line for line in out.splitlines() if "%" not in line] == [
        "photos/4.png",
        "photos/0.png",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, err = typed("predict", "-")
    assert (code, out) == (1, "")
    assert "stdin names no picture" in err


def test_a_batch_has_a_picture(typed, photos):
    code, _, err = typed("predict", photos[0], "--batch", "0")
    assert code == 1
    assert "at least one picture at a time" in err
