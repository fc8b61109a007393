"""`saccade upscale`, as typed."""

import json

import pytest

from saccade.recipes.recipe import change
from tests.engine.classify_runs import fit
from tests.tasks.upscale.test_upscale import SMALL, stripes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = stripes(tmp_path_factory.mktemp("stripes") / "all", 6)
    recipe = change(SMALL, schedule__epochs=1, loop__evaluate_every=1)
    return data, fit(recipe, data, tmp_path_factory.mktemp("runs") / "run").folder


def test_pictures_and_folders(run, typed, trained, tmp_path):
    data, model = trained
    out = tmp_path / "out"
    code, message = run("upscale", str(data), "--model", str(model), "--out", str(out))
    assert code == 0, message
    assert message.count("48 x 48 to 96 x 96 pixels") == 6
    assert len(list(out.iterdir())) == 6
    picture = str(data / "00.png")
    words = ("upscale", picture, "--model", str(model), "--out", str(out), "--json")
    code, message, beside = typed(*words)
    assert code == 0, beside
    line = json.loads(message)
    assert (line["file"], line["before"], line["after"]) == (picture, [48, 48], [96, 96])


def test_a_classifier_is_refused(run, trained, tmp_path):
    code, message = run(
        "upscale", str(trained[0]), "--model", "linglo_nano", "--out", str(tmp_path)
    )
    assert code == 1
    assert "upscale" in message
