"""What a person asks for, and what they are told when it cannot be had."""

import shutil

import numpy as np
import pytest
from PIL import Image

from saccade.engine import session
from saccade.engine.checkpoint import Checkpoints
from saccade.recipes.recipe import change
from tests.engine.small import PLAIN, fit, folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"), train=16)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    recipe = change(PLAIN, schedule__epochs=6)
    return fit(recipe, data, tmp_path_factory.mktemp("runs") / "run")


def test_evaluation_matches_classes_by_name(run, data, tmp_path):
    some = tmp_path / "some"
    for split in ("train", "val"):
        for name in ("red", "green"):
            shutil.copytree(data / split / name, some / split / name)
    assert session.evaluate(run.folder).compute()["images"] == 9
    assert session.evaluate(run.folder, split="train").compute()["images"] == 48
    figures = session.evaluate(run.folder, str(some)).compute()
    assert figures["images"] == 6
    assert figures["top1"] > 60
    shutil.copytree(data / "val" / "red", some / "val" / "puce")
    shutil.copytree(data / "val" / "red", some / "train" / "puce")
    with pytest.raises(ValueError, match="class 'puce' is not among the model's 3"):
        session.evaluate(run.folder, str(some))


def test_a_trained_backbone_starts_another(run, data, tmp_path):
    other = folder(tmp_path / "data")
    for split in ("train", "val"):
        (other / split / "red").rename(other / split / "crimson")
    start = change(PLAIN, model__start=str(run.folder), schedule__epochs=1)
    fit(start, other, tmp_path / "run")
    with pytest.raises(ValueError, match=r"set model\.name=qna_nano"):
        fit(change(start, model__name="linglo_nano"), other, tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="no file"):
        fit(change(start, model__start="gone.safetensors"), other, tmp_path / "third")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__name": "qna_nanoo"}, "did you mean 'qna_nano'"),
        ({"model__options": {"wndow": 3}}, "do not fit"),
        ({"loop__batch": 10_000}, "try loop.batch="),
        ({"schedule__warmup": 9.0}, "shorten schedule.warmup"),
        ({"augment__rand": "rnd-x"}, "augment.rand"),
        ({"loop__shard": True}, "torchrun"),
        ({"loop__keep": 0}, "at least the last one"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes, said, data, tmp_path):
    with pytest.raises(ValueError, match=said):
        fit(change(PLAIN, **changes), data, tmp_path / "run")


def test_a_refused_run_can_be_asked_for_again(data, tmp_path):
    """Nothing that was refused before its first step stands in the way of the next try."""
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="did you mean"):
        fit(change(PLAIN, model__name="qna_nanoo"), data, out)
    fit(change(PLAIN, schedule__epochs=1), data, out)
    assert Checkpoints(out).entry() is not None


def test_a_run_needs_its_own_classes_to_go_on(run, data, tmp_path):
    moved = tmp_path / "data"
    shutil.copytree(data, moved)
    recipe = change(PLAIN, schedule__epochs=1)
    begun = fit(recipe, moved, tmp_path / "run")
    for split in ("train", "val"):
        (moved / split / "red").rename(moved / split / "crimson")
    with pytest.raises(ValueError, match="'red' is gone and 'crimson' is new"):
        session.resume(begun.folder)


def test_broken_images_are_listed_and_no_reason_to_stop(tmp_path):
    data = folder(tmp_path / "data")
    (data / "train" / "red" / "0.png").write_bytes(b"")
    (data / "val" / "blue" / "1.png").write_bytes(b"no picture")
    grey = np.random.default_rng(0).integers(0, 255, (40, 40)).astype(np.uint8)
    Image.fromarray(grey).save(data / "train" / "green" / "1.png")
    run = fit(change(PLAIN, data__bad=0.2), data, tmp_path / "run")
    assert run.lines()[-1]["bad"] == 2
    assert run.lines()[-1]["val"]["images"] == 8
    listed = (run.folder / "bad.json").read_text()
    assert "0.png" in listed
    assert "1.png" in listed
    with pytest.raises(ValueError, match=r"data\.bad allows"):
        fit(change(PLAIN, data__bad=0.01), data, tmp_path / "strict")
