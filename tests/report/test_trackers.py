"""W&B and MLflow, with stand-ins for their packages."""

import base64
import io
import sys
from types import SimpleNamespace

import pytest
from PIL import Image

from saccade.report.trackers import MLflow, Wandb
from tests.report.run_folders import written


class Recorder:
    """The part of both packages that is used; it writes down what comes."""

    def __init__(self):
        self.begun, self.logged, self.ended, self.photos = [], [], [], []
        self.id = "abc123"
        self.info = SimpleNamespace(run_id=self.id)

    def Image(self, photo, caption):  # noqa: N802
        self.photos.append((photo.size, caption))
        return caption

    def init(self, **words):
        self.begun.append(words["id"])
        assert words["project"] == "saccade"
        assert words["config"]["optim"]["lr"] > 0
        return self

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self, exit_code):
        self.ended.append(exit_code)

    def set_experiment(self, name):
        assert name == "saccade"

    def start_run(self, run_id, run_name):
        self.begun.append(run_id)
        return self

    def log_params(self, words):
        assert all(len(value) <= 500 for value in words.values())
        assert float(words["optim.lr"]) > 0

    def log_metrics(self, values, step):
        self.logged.append((step, values))

    def log_image(self, photo, artifact_file):
        self.photos.append((photo.size, artifact_file))

    def end_run(self, status):
        self.ended.append({"FINISHED": 0, "KILLED": 1}[status])


@pytest.fixture(params=[Wandb, MLflow])
def tracker(request, monkeypatch):
    package = Recorder()
    monkeypatch.setitem(sys.modules, request.param.name, package)
    return request.param, package


def course(make, run, steps, begin=0):
    with make() as tracker:
        tracker.began(run, begin, 12)
        for step in range(begin + 1, begin + steps + 1):
            tracker.stepped(step, {"boxes": 1.0, "classes": 2.0}, 0.1, 8)
        tracker.evaluated({"step": begin + steps, "val": {"AP": 30.0}}, True)


def test_points_pictures_and_the_same_run_again(tracker, tmp_path):
    make, package = tracker
    run = written(tmp_path / "a", epochs=0)
    stream = io.BytesIO()
    Image.new("RGB", (40, 30)).save(stream, "JPEG")
    jpeg = base64.b64encode(stream.getvalue()).decode()
    rows = [{"caption": "two missed", "jpeg": jpeg}]
    run.write_json("tables.json", {"examples": {"Worst: truth, prediction": rows}})
    course(make, run, 3)
    points = [(step, values) for step, values in package.logged if "train/loss" in values]
    assert points[0] == (
        1,
        {"train/loss": 3.0, "train/boxes": 1.0, "train/classes": 2.0, "train/rate": 0.1},
    )
    assert (3, {"val/AP": 30.0}) in package.logged
    assert package.photos[0][0] == (40, 30)
    course(make, run, 3, begin=3)
    assert package.begun == [None, "abc123"], "it goes on under its number"
    assert package.ended == [0, 0]


def test_a_run_that_ends_early_and_an_odd_number(tracker, tmp_path):
    make, package = tracker
    run = written(tmp_path / "a", epochs=0)
    run.write_json(f"{make.name}.json", {"id": "../../x y"})

    def interrupted():
        with make() as one:
            one.began(run, 0, 12)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert package.begun == [None], "a number that is none is not sent"
    assert package.ended == [1]


@pytest.mark.parametrize("make", [Wandb, MLflow])
def test_a_package_that_is_missing(make, monkeypatch):
    monkeypatch.setitem(sys.modules, make.name, None)
    with pytest.raises(ImportError, match=rf"pip install 'saccade\[{make.name}\]'"):
        make()
