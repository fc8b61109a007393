"""What a person asks for, and what they are told when it cannot be had."""

import json
import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from saccade.engine import archive, session
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.run import Run
from saccade.engine.train import Stopped
from saccade.files import write_json
from saccade.models.saved import load, save
from saccade.models.zoo import build
from saccade.recipes.recipe import Model, change
from tests.engine.classify_runs import PLAIN, At, fit, folder


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
    ("changes", "message"),
    [
        ({"model__name": "qna_nanoo"}, "did you mean 'qna_nano'"),
        ({"model__options": {"wndow": 3}}, "do not fit"),
        ({"loop__batch": 10_000}, "try loop.batch="),
        ({"schedule__warmup": 9.0}, "shorten schedule.warmup"),
        ({"augment__rand": "rnd-x"}, "augment.rand"),
        ({"loop__shard": True}, "torchrun"),
        ({"loop__keep": 0}, "loop.keep: 1 or more"),
        ({"loop__evaluate_every": 0}, r"loop\.evaluate_every: 1 or more, got 0"),
        ({"schedule__epochs": 0}, r"schedule\.epochs: 1 or more"),
        ({"loop__ema": 2.0}, r"loop\.ema: 0 to 1, got 2"),
        ({"augment__flip": float("nan")}, r"augment\.flip: 0 to 1"),
        ({"optim__clip": -1.0}, r"optim\.clip"),
        ({"model__name": "vgg11", "model__drop_path": 0.1}, r"set model\.drop_path=null"),
        ({"model__name": "vit_tiny_patch16_224"}, "does not take images of 32 x 32"),
        ({"model__options": {"num_classes": 2}}, "comes from the images"),
        ({"model__options": {"in_chans": 1}}, "reads 1 channels, got 3"),
        ({"model__options": {"in_chans": 0}}, "in_chans is a whole number, 1 or more, got 0"),
        ({"model__options": {"global_pool": 0}}, r"options\.global_pool: .* a word such as avg"),
        ({"model__options": {"global_pool": "none"}}, r"global_pool: one of 'avg'"),
        ({"model__options": {"features_only": True}}, r"model\.options\.features_only: is set"),
        ({"model__options": {"checkpoint_path": "x"}}, r"checkpoint_path: would fetch or open"),
        ({"model__options": {"drop_path_rate": 33}}, r"drop_path_rate is a share"),
        ({"model__drop_path": 33.0}, r"model\.drop_path: 0 to 0\.999, got 33"),
        ({"schedule__shape": "poly", "schedule__end": -1.0}, r"schedule\.end: 0 to 1, got -1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(change(PLAIN, **changes), data, tmp_path / "run")
    assert not (tmp_path / "run" / "steps.jsonl").exists()


def test_a_refused_run_can_be_asked_for_again(data, tmp_path):
    """Nothing that was refused before its first step stands in the way of the next try."""
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="did you mean"):
        fit(change(PLAIN, model__name="qna_nanoo"), data, out)
    fit(change(PLAIN, schedule__epochs=1), data, out)
    assert Checkpoints(out).entry() is not None


def test_a_class_that_steers_a_terminal_begins_no_run(tmp_path):
    """Its run could not be resumed, and its model not be loaded."""
    root = folder(tmp_path / "colours", train=1, val=1)
    for split in ("train", "val"):
        (root / split / "red").rename(root / split / "re\x1b[2Jd")
    with pytest.raises(ValueError, match=r"the class 're\\x1b\[2Jd' has control characters"):
        fit(PLAIN, root, tmp_path / "run")
    assert not (tmp_path / "run").exists()


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


def stopped(recipe, data, out, step=1):
    with pytest.raises(Stopped):
        fit(recipe, data, out, At(step, lambda: os.kill(os.getpid(), signal.SIGTERM)))


class Hearing(At):
    """Remember what was said."""

    def __init__(self):
        super().__init__(None, None)
        self.heard = []

    def say(self, sentence):
        self.heard.append(sentence)


def test_a_run_does_not_go_on_with_other_images(tmp_path):
    """Another image shifts the order of all, and which are held out: nothing would tell."""
    data, out = folder(tmp_path / "data"), tmp_path / "run"
    stopped(PLAIN, data, out)
    shutil.copy(data / "train/red/0.png", data / "train/red/00.png")
    with pytest.raises(ValueError, match="25 and 9 instead of 24 and 9"):
        session.resume(out, device="cpu")
    (data / "train/red/0.png").unlink()
    with pytest.raises(ValueError, match="other names or labels"):
        session.resume(out, device="cpu")
    (data / "train/red/00.png").rename(data / "train/red/0.png")
    session.resume(out, device="cpu")


def test_runs_and_images_may_be_moved(tmp_path, monkeypatch):
    folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    stopped(PLAIN, "data", "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").rename(tmp_path / "elsewhere/run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    ask = At(Checkpoints("run").entry()["step"] + 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        session.resume("run", watch=lambda: ask, device="cpu")
    (tmp_path / "data").rename(tmp_path / "images")
    with pytest.raises(FileNotFoundError, match="no folder or file"):
        session.resume("run", device="cpu")
    run = session.resume("run", "../images", device="cpu")
    assert run.lines()[-1]["epoch"] == 2
    monkeypatch.chdir(tmp_path / "elsewhere" / "run")
    assert session.evaluate(".").compute()["images"] == 9


def test_paths_inside_a_recipe_hold_from_anywhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run.folder.parent)
    recipe = session._with_absolute_paths(change(PLAIN, model__start=run.folder.name))
    assert recipe.model.start == str(run.folder.absolute())
    recipe = session._with_absolute_paths(change(PLAIN, model__start="nowhere"))
    assert recipe.model.start == "nowhere"


def test_a_run_goes_on_without_the_model_it_started_from(run, data, tmp_path):
    copied = shutil.copy(run.folder / "model.safetensors", tmp_path / "start.safetensors")
    out = tmp_path / "run"
    stopped(change(PLAIN, model__start=str(copied)), data, out)
    (tmp_path / "start.safetensors").unlink()
    session.resume(out, device="cpu")


def test_a_run_that_began_without_branch_norms_goes_on_without(data, tmp_path):
    """As runs of older versions did, whose recipe does not speak of them."""
    out = tmp_path / "run"
    bare = Model(name="linglo_nano", drop_path=0.0, options={"branch_norm": False})
    stopped(change(PLAIN, model=bare), data, out)
    recipe = json.loads((out / "recipe.json").read_text())
    text = json.dumps(recipe).replace('{"branch_norm": false}', "{}")
    assert text != json.dumps(recipe)
    (out / "recipe.json").write_text(text)
    run = session.resume(out, device="cpu", force=True)  # the recipe was changed by hand
    model = load(run.folder)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def test_weights_without_branch_norms_start_a_run(data, tmp_path):
    torch.manual_seed(0)
    older = save(build("linglo_nano", num_classes=2, branch_norm=False), tmp_path / "a.safetensors")
    model = Model(name="linglo_nano", drop_path=0.0, start=str(older))
    run = fit(change(PLAIN, model=model, schedule__epochs=1), data, tmp_path / "run")
    assert not any(isinstance(m, nn.BatchNorm2d) for m in load(run.folder).modules())


def test_a_run_that_lost_its_checkpoints_is_not_begun_anew(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        session.resume(tmp_path / "run", device="cpu")
    assert len(Run.open(tmp_path / "run").lines()) == 6


def test_what_is_odd_about_the_images_is_said(tmp_path):
    data = folder(tmp_path / "data")
    shutil.rmtree(data / "val/red")
    hearing = Hearing()
    fit(change(PLAIN, schedule__epochs=1), data, tmp_path / "run", hearing)
    assert "data: 24 images to train on, 6 to validate, 3 classes" in hearing.heard
    assert "no validation images of 'red'" in hearing.heard


def test_another_machine_is_said(data, tmp_path):
    out = tmp_path / "run"
    stopped(PLAIN, data, out)
    then = json.loads((out / "environment.json").read_text())
    write_json(out / "environment.json", {**then, "threads": 64})
    hearing = Hearing()
    session.resume(out, watch=lambda: hearing, device="cpu")
    assert any("threads 64 ->" in sentence for sentence in hearing.heard)


def test_a_stopped_run_leaves_no_process_behind(data, tmp_path):
    before = {p.pid for p in multiprocessing.active_children()}
    ask = At(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped) as stopped:  # whose traceback holds all that lived
        fit(change(PLAIN, data__workers=1), data, tmp_path / "run", ask)
    assert {p.pid for p in multiprocessing.active_children()} <= before, stopped


def test_a_resumed_run_compares_its_checksum_once(data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped(change(PLAIN, loop__save_every=1, schedule__epochs=1), data, out)
    compared, read = [], []
    digest, tree = archive.digest, archive.read
    monkeypatch.setattr(archive, "digest", lambda path: compared.append(path) or digest(path))

    def reading(path, tensor=None):
        read.append(tensor is None)
        return tree(path, tensor)

    monkeypatch.setattr(archive, "read", reading)
    session.resume(out, device="cpu")
    assert len(compared) == 1
    assert read == [False, True], "names, then tensors"
