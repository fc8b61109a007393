"""A task from outside trains, resumes, evaluates, reports and exports as any other does.

No file of saccade knows it; see `tests/tasks/brightness.py`.
"""

import json
import subprocess

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade import cli, tasks
from saccade.engine import session
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.train import Stopped
from saccade.recipes.recipe import change
from tests.cli.conftest import run as run  # the command line, as fixtures
from tests.cli.conftest import typed as typed
from tests.engine.classify_runs import At, fit, same
from tests.tasks import brightness
from tests.tasks.brightness import RECIPE
from tests.test_house import ROOT, SOURCE

WORKERS = ("--set", "data.workers=0")


@pytest.fixture(scope="module", autouse=True)
def registered():
    brightness.register()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return brightness.pictures(tmp_path_factory.mktemp("data") / "greys")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    cli.main(["train", "brightness", "--data", str(data), "--out", str(out), *WORKERS])
    return out


def test_it_trains_and_its_model_comes_back(trained):
    net = saccade.load(trained)
    assert isinstance(net, brightness.BrightnessNet)
    photo = np.full((30, 30, 3), 128, np.uint8)
    assert brightness.error(net, photo) < 0.2
    one = session.open_model(trained)
    assert one.definition is tasks.TASKS["brightness"]
    assert one.settings == RECIPE.task


@pytest.mark.slow
def test_it_goes_on_as_if_nothing_had_been(data, tmp_path):
    recipe = change(RECIPE, data__workers=0, loop__save_every=1)
    whole = fit(recipe, data, tmp_path / "whole")

    def stop():
        raise Stopped

    with pytest.raises(Stopped):
        fit(recipe, data, tmp_path / "broken", At(5, stop))
    broken = session.resume(tmp_path / "broken", device="cpu")
    states = [Checkpoints(one.folder).load()[0]["model"] for one in (whole, broken)]
    assert same(*states) is None


def test_the_commands_evaluate_and_report_it(run, trained, data):
    code, out = run("eval", str(trained), "--data", str(data), "--json")
    assert code == 0, out
    assert json.loads(out)["images"] in (2, 16)  # held out, or all
    code, out = run("report", str(trained))
    assert code == 0, out
    assert "within a tenth" in out
    page = (trained / "report.html").read_text()
    assert "<h2>Grey scale</h2>" in page
    assert 'alt="From dark to bright"' in page
    assert (trained / "grey_scale.png").is_file()


def test_the_command_exports_it(run, trained, tmp_path):
    pytest.importorskip("onnxruntime")
    from saccade.export import runner

    code, out = run("export", str(trained), "--out", str(tmp_path / "net.onnx"))
    assert code == 0, out
    grey = np.full((2, 3, 40, 50), 0.5, np.float32)
    assert runner(tmp_path / "net.onnx")(grey)["brightness"].shape == (2, 1)


def test_other_commands_say_what_it_is(run, trained, data, tmp_path):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 40)).save(photo)
    code, out = run("predict", str(photo), "--model", str(trained))
    assert code != 0
    assert "was trained to brightness" in " ".join(out.split())


def test_no_file_of_saccade_knows_it():
    command = ["grep", "-rli", "brightness_net", str(SOURCE)]
    listing = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert [line for line in listing.stdout.splitlines() if line.endswith(".py")] == []
