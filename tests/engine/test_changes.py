"""A run goes on with what it began with, or says what has changed."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from saccade.data.images import Files
from saccade.data.masks.dataset import Legend, Masks
from saccade.engine import changes, session
from saccade.engine.checkpoint import Checkpoints
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, folder
from tests.engine.old_checkpoints import made_old
from tests.engine.test_session import Hearing, stopped


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    place = tmp_path_factory.mktemp("begun")
    data = folder(place / "data", train=6, val=1)
    recipe = change(PLAIN, schedule__epochs=1, loop__save_every=1)
    stopped(recipe, data, place / "run")
    return place


@pytest.fixture
def begun(original, tmp_path):
    shutil.copytree(original, tmp_path / "x")
    return tmp_path / "x/data", tmp_path / "x/run"


def resumed(out, **options):
    hearing = Hearing()
    data = str(out.parent / "data")
    session.resume(out, data, watch=lambda: hearing, device="cpu", **options)
    return hearing.heard


@pytest.mark.parametrize("lost", [None, "gone", "flipped"])
def test_changed_pixels_are_noticed(begun, lost):
    """Also if data.json does not tell any more: the checkpoint does."""
    data, out = begun
    if lost == "gone":
        (out / "data.json").unlink()
    elif lost == "flipped":
        text = (out / "data.json").read_text()
        (out / "data.json").write_text(text.replace("a", "b"))
    path = data / "val" / "red" / "0.png"
    pixels = np.asarray(Image.open(path)).copy()
    pixels[3, 4, 0] ^= 1
    Image.fromarray(pixels).save(path)
    with pytest.raises(ValueError, match=r"images .* have changed .* go on with them by --force"):
        resumed(out)
    assert any("the run goes on with them" in sentence for sentence in resumed(out, force=True))


@pytest.mark.parametrize("text", [None, b"{", b"\xff", b'{"train": 3, "val": {}}'])
def test_torn_files_that_only_inform_stop_nothing(begun, text):
    _, out = begun
    for name in ("data.json", "environment.json", "findings.json", "bad.json", "tables.json"):
        if text is None:
            (out / name).unlink(missing_ok=True)
        else:
            (out / name).write_bytes(text)
    for name in ("steps.jsonl", "report.jsonl"):
        (out / name).write_bytes(b'5\n{"step": "x"}\n\xff\xfe{')
    resumed(out)
    assert json.loads((out / "data.json").read_text())["train"]["images"] == 18


def test_a_recipe_that_was_edited_is_noticed(begun):
    _, out = begun
    plain = json.loads((out / "recipe.json").read_text())
    plain["recipe"]["optim"]["lr"] = 0.5
    (out / "recipe.json").write_text(json.dumps(plain))
    message = r"recipe.json' was edited .* \(optim.lr 0.002 -> 0.5\); undo that, or .* --force"
    with pytest.raises(ValueError, match=message):
        resumed(out)
    assert any("was edited" in sentence for sentence in resumed(out, force=True))


@pytest.mark.parametrize("text", [None, '{"name": 3}'])
def test_a_recipe_that_is_lost_is_in_the_checkpoint(begun, text):
    _, out = begun
    before = json.loads((out / "recipe.json").read_text())
    (out / "recipe.json").unlink()
    if text is not None:
        (out / "recipe.json").write_text(text)
    heard = resumed(out)
    assert any("the recipe is taken from the checkpoint" in sentence for sentence in heard)
    after = json.loads((out / "recipe.json").read_text())
    assert {**after, "data": ""} == {**before, "data": ""}


def test_runs_of_earlier_versions_go_on(begun):
    """Their data.json says less, and their checkpoints nothing."""
    _, out = begun
    plain = json.loads((out / "data.json").read_text())
    less = {k: {"images": v["images"], "sha256": v["sha256"]} for k, v in plain.items()}
    (out / "data.json").write_text(json.dumps(less))
    made_old(out)
    resumed(out)
    assert Checkpoints(out).about(Checkpoints(out).entry())["recipe"]


def test_images_and_masks_are_part_of_it(tmp_path):
    for name in ("a", "b", "a mask", "b mask"):
        (tmp_path / name).write_bytes(b"one")
    files = Files(tmp_path, ["a", "b"], [0, 1], ["x", "y"])
    masks = Masks(tmp_path, ["a", "b"], ["a mask", "b mask"], Legend(["x"], [0], ()))
    for images, name in ((files, "b"), (masks, "b mask")):
        before = changes._of_set(images, 0)
        (tmp_path / name).write_bytes(b"two")
        after = changes._of_set(images, 0)
        assert before["sizes"] == after["sizes"]
        assert before["sample"]["0"] == after["sample"]["0"]
        assert before["sample"]["1"] != after["sample"]["1"]
        (tmp_path / name).write_bytes(b"longer")
        assert before["sizes"] != changes._of_set(images, 0)["sizes"]
        (tmp_path / name).write_bytes(b"one")
