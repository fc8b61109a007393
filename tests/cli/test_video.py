"""Videos through `detect` and `segment`: what is drawn and written, with stand-ins for models."""

import json
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.cli import video
from saccade.infer.video import Writer, frames
from saccade.tasks.detect.task import Detections

pytest.importorskip("av")


@pytest.fixture
def clip(tmp_path):
    """A white square that moves two pixels a frame; in frame 5 there are two."""
    path = tmp_path / "clip.mp4"
    with Writer(path, Fraction(10)) as out:
        for n in range(8):
            pixels = np.full((48, 96, 3), 90, np.uint8)
            pixels[8:24, 2 * n : 2 * n + 16] = 255
            if n == 4:
                pixels[28:44, 70:86] = 255
            out.write(Image.fromarray(pixels), n / 10)
    return path


def image_of(photo):
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).float()


class Whites:
    """A detector of white squares."""

    device, classes, transform = torch.device("cpu"), ["square"], staticmethod(image_of)

    def __init__(self):
        self.task, self.batches = self, []

    def infer(self, image, size):
        assert size.tolist() == [[48, 96]] * len(image)
        self.batches.append(len(image))
        return {"image": image}

    def predict(self, output, sizes, score):
        boxes = []
        for image in output["image"]:
            white = image.mean(0) > 170
            halves = [(0, white[:26]), (26, white[26:])]
            corners = [
                [x.min(), y.min() + top, x.max() + 1, y.max() + top + 1]
                for top, part in halves
                for y, x in [part.nonzero(as_tuple=True)]
                if len(y)
            ]
            n = len(corners)
            boxes.append(
                Detections(
                    torch.tensor(corners).float(), torch.zeros(n).long(), torch.ones(n) * 0.9
                )
            )
        return boxes


def test_boxes_tracks_and_mot(clip, tmp_path, capsys):
    detector = Whites()
    video.detect_in(str(clip), detector, tmp_path / "out", 0.3, 3, True, None, False)
    assert detector.batches == [3, 3, 2]
    assert "9 boxes in 8 frames, 1 tracks" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out/clip.jsonl").read_text().splitlines()]
    assert [row["frame"] for row in rows] == list(range(1, 9))
    assert rows[3]["time"] == pytest.approx(0.3, abs=1e-3)
    assert [[one["track"] for one in row["objects"]] for row in rows] == [[1]] * 4 + [[1, 0]] + [
        [1]
    ] * 3
    mot = [line.split(",") for line in (tmp_path / "out/clip.txt").read_text().splitlines()]
    assert [(line[0], line[1], len(line)) for line in mot] == [
        (str(n), "1", 10) for n in range(1, 9)
    ]
    for n, line in enumerate(mot):
        assert float(line[2]) == pytest.approx(2 * n, abs=2)
        assert float(line[4]) == pytest.approx(16, abs=3)
    drawn = list(frames(str(tmp_path / "out/clip.mp4")))
    assert len(drawn) == 8
    before = np.asarray(next(frames(str(clip))).photo, int)
    assert abs(np.asarray(drawn[0].photo, int) - before).max() > 60, "a frame is drawn"


def test_json_writes_nothing(clip, tmp_path, capsys):
    video.detect_in(str(clip), Whites(), tmp_path / "out", 0.3, 4, False, 2, True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["frame"] for line in lines] == [1, 2]
    assert not (tmp_path / "out").exists()


def test_regions(clip, tmp_path):
    task = SimpleNamespace(classes=("grey", "white"), infer=lambda image, size: {"image": image})
    task.predict = lambda output, sizes: [(x.mean(0) > 170).byte() for x in output["image"]]
    video.segment_in(str(clip), task, image_of, "cpu", tmp_path / "out", 4, None, False)
    rows = [json.loads(line) for line in (tmp_path / "out/clip.jsonl").read_text().splitlines()]
    assert rows[0]["shares"]["white"] == pytest.approx(256 / 48 / 96, rel=0.2)
    drawn = list(frames(str(tmp_path / "out/clip.mp4")))
    assert drawn[0].photo.size == (96, 48)
    assert len(drawn) == 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("detect",), "give pictures, a video, or --source 0"),
        (("detect", "a.mp4", "b.png"), "videos and pictures in one call"),
        (("detect", "a.png", "--source", "0"), "give no files beside it"),
        (("detect", "a.png", "--track"), "--track is for a video"),
        (("detect", "a.png", "--most", "3"), "--most is for videos"),
        (("detect", "a", "b", "--watch"), "--watch takes one folder"),
        (("segment", "a.mp4", "--watch"), "--watch takes one folder"),
        (("segment",), "give pictures, a video, or --source 0"),
    ],
)
def test_words_that_do_not_fit(run, words, sentence):
    code, out = run(*words)
    assert code == 1
    assert sentence in out
    assert "Traceback" not in out
