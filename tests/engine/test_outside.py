"""A run's recipe may name what lies elsewhere, which only its owner's word opens or fetches."""

import json
import shutil

import pytest

from saccade.engine import outside, session
from saccade.recipes.classify import Distill
from saccade.recipes.disk import to_plain
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, folder
from tests.test_attack import begun, refused
from tools.campaign.guard import guarded

DISTILL = {**to_plain(PLAIN)["task"], "kind": "Distill", "weight": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"), train=4, val=1)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("model", {"name": "resnet18", "options": {"pretrained": True}}),
        ("model", {"start": "{elsewhere}/model.safetensors"}),
        ("model", {"start": "{elsewhere}"}),
        ("model", {"start": "link"}),
        ("task", {**DISTILL, "teacher": "resnet18"}),
        ("task", {**DISTILL, "teacher": "{elsewhere}"}),
        ("task", {**DISTILL, "teacher": "hf-hub:stranger/model"}),
        ("task", {**DISTILL, "teacher": "https://stranger.example/model"}),
        ("task", {**DISTILL, "teacher": "linglo_nano", "classes": "{elsewhere}/classes.json"}),
    ],
)
def test_a_runs_recipe_opens_and_fetches_nothing(group, words, tmp_path, data, capsys):
    elsewhere, run = begun(tmp_path / "elsewhere", data), begun(tmp_path / "run", data)
    (elsewhere / "classes.json").write_text("{}")
    (run / "link").symlink_to(elsewhere)
    if words.get("start") == "link":
        words = {"start": str(run / "link")}
    plain = json.loads((run / "recipe.json").read_text())
    text = json.dumps(words).replace("{elsewhere}", str(elsewhere))
    plain["recipe"][group].update(json.loads(text))
    (run / "recipe.json").write_text(json.dumps(plain))
    with guarded():
        message = refused(["resume", str(run), "--device", "cpu"], capsys)
        session.open_model(run)
    assert "no part of the run; if the run is your own" in " ".join(message.split())
    assert "--trust" in message


def test_a_run_begins_with_what_is_at_hand(tmp_path, data):
    run = begun(tmp_path / "run", data)
    inside = shutil.copy(run / "model.safetensors", run / "first.safetensors")
    for start in ("qna_nano", inside, ""):
        outside.check(change(PLAIN, model__start=str(start)), run)
    outside.check(change(PLAIN, task=Distill(teacher="efficientnet_lite0")), run)
    plain = json.loads((run / "recipe.json").read_text())
    other = shutil.copy(run / "model.safetensors", tmp_path / "mine.safetensors")
    plain["recipe"]["model"]["start"] = str(other)
    plain["recipe"]["schedule"]["epochs"] = 1
    (run / "recipe.json").write_text(json.dumps(plain))
    assert session.resume(run, trust=True, device="cpu").lines()[-1]["epoch"] == 1
    session.resume(run, device="cpu")  # the checkpoint makes it needless
