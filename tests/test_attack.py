"""A run's folder from a stranger: whatever is in it, no command runs code of it.

Each command ends, with a sentence where it must; none makes the marker that a pickle would make.
"""

import contextlib
import itertools
import json
import shutil

import pytest
import torch

import saccade
from saccade.cli import main
from saccade.engine import session
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.run import Run
from saccade.recipes.recipe import change
from tests.attack import evil_contents
from tests.engine.classify_runs import PLAIN, fit, folder
from tests.engine.old_checkpoints import indexed_as, made_old, write_split
from tests.engine.test_session import stopped

CLASSES = ("blue", "green", "red")
FILES = (
    "recipe.json", "data.json", "environment.json", "report.jsonl", "steps.jsonl", "tables.json",
    "bad.json", "baseline.json", "findings.json", "teacher.safetensors", "model.safetensors",
    "checkpoints/index.json", "checkpoints/step-000000003.safetensors",
    "checkpoints/step-000000004.pt", "checkpoints/step-000000005.pt.part",
    "checkpoints/step-000000006/.metadata", "checkpoints/step-000000006/rest.pt",
    "checkpoints/step-000000006/__0_0.distcp",
    "checkpoints/step-000000007/rest.safetensors",
    "checkpoints/step-000000007/rank-00000.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"), train=4, val=1)


def commands(run, data, out):
    """Everything that reads a run or a model of it."""
    picture = str(data / "val" / "red" / "0.png")
    start = ["train", "finetune", "--data", str(data), "--out", str(out), "--epochs", "1"]
    small = ["--set", "model.name=qna_nano", "loop.batch=8", "data.workers=0"]
    return {
        "resume": ["resume", str(run), "--device", "cpu"],
        "eval": ["eval", str(run), "--data", str(data), "--device", "cpu"],
        "export": ["export", str(run), "--out", str(out) + ".onnx"],
        "report": ["report", str(run)],
        "predict": ["predict", picture, "--model", str(run), "--device", "cpu"],
        "start": [*start, "--start", str(run), *small],
        "start, set": [*start, *small, f"model.start={run}"],
    }


def refused(words, capsys):
    """Run a command that must end with one sentence."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (1, 2)
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "saccade: " in message
    return message


def test_a_folder_full_of_pickles(tmp_path, data, capsys):
    for number, (kind, content) in enumerate(evil_contents(tmp_path / "marker").items()):
        run = tmp_path / str(number)
        for name in FILES:
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(content)
        for command, words in commands(run, data, tmp_path / "out").items():
            refused(words, capsys)
            assert not (tmp_path / "marker").exists(), (kind, command)


def begun(run, data):
    """A run that has a model, and no checkpoint yet."""
    Run.create(run, "quick", PLAIN, str(data), CLASSES)
    net = saccade.build("qna_nano", num_classes=3)
    saccade.save(net, run / "model.safetensors", classes=list(CLASSES), test={"size": 32})
    return run


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("name", [".metadata", "rest.pt"])
def test_resume_does_not_unpickle_a_split_checkpoint(name, indexed, tmp_path, data, capsys):
    run, marker = begun(tmp_path / "run", data), tmp_path / "marker"
    for kind, content in evil_contents(marker).items():
        path = write_split(run, {"model": {"w": torch.zeros(2)}}, {}, 3)
        (path / name).write_bytes(content)
        if indexed:  # an index of the stranger's, which fits
            indexed_as(path, 3)
        else:
            (run / "checkpoints/index.json").unlink()
        message = refused(["resume", str(run), "--device", "cpu"], capsys)
        assert "step-000000003" in message, kind
        assert not marker.exists(), kind


def test_links_lead_nowhere(tmp_path, data, capsys):
    run = begun(tmp_path / "run", data)
    (tmp_path / "secret").write_text("secret")
    (run / "checkpoints").mkdir()
    (run / "checkpoints/step-000000003.pt").symlink_to(tmp_path / "secret")
    message = refused(["resume", str(run), "--device", "cpu"], capsys)
    assert "link out of the run's folder" in message
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(tmp_path)
    message = refused(["resume", str(run), "--device", "cpu"], capsys)
    assert "link out of the run's folder" in message
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_each_file_of_a_whole_run(tmp_path, data, old, capsys):
    """One file after the other is a pickle, the rest is as it was written."""
    whole = fit(PLAIN, data, tmp_path / "whole").folder
    if old:
        made_old(whole)
    marker = tmp_path / "marker"
    names = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    contents = evil_contents(marker)
    for name, kind in itertools.product(names, ("pickle", "archive of torch")):
        run = tmp_path / "run"
        shutil.copytree(whole, run)
        (run / name).write_bytes(contents[kind])
        for command, words in commands(run, data, tmp_path / "out").items():
            with contextlib.suppress(SystemExit):
                main(words)
            assert "Traceback" not in capsys.readouterr().err, (name, command)
            assert not marker.exists(), (name, command)
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(run)


def test_old_checkpoints_of_a_run_still_load(tmp_path, data):
    out = tmp_path / "run"
    stopped(change(PLAIN, loop__save_every=1, schedule__epochs=1), data, out)
    assert made_old(out).suffix == ".pt"
    assert session.resume(out, device="cpu").lines()[-1]["epoch"] == 1
    assert Checkpoints(out).entry()["file"].endswith(".safetensors")


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({"classes": ["a"]}, "has 3 classes and its notes name 1"),
        ({"classes": ["\x1b[2J", "b", "c"]}, "control characters"),
        ({"test": {"size": 100_000}}, "test.size: 1 to 8192"),
        ({"test": {"size": 32, "crop": 1e-9}}, "test.crop: 0.1 to 1"),
    ],
)
def test_a_models_notes_that_would_break_a_command(notes, message, tmp_path, data, capsys):
    net = saccade.build("qna_nano", num_classes=3)
    notes = {"classes": list(CLASSES), "test": {"size": 32}, **notes}
    path = saccade.save(net, tmp_path / "m.safetensors", **notes)
    words = ["predict", str(data / "val/red/0.png"), "--model", str(path), "--device", "cpu"]
    assert message in " ".join(refused(words, capsys).split())


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("data", "workers", 10**6),
        ("augment", "rand", "rand-m9-n99999999"),
        ("augment", "size", 10**7),
    ],
)
def test_a_recipe_that_would_never_end(group, key, value, tmp_path, data, capsys):
    run = begun(tmp_path / "run", data)
    plain = json.loads((run / "recipe.json").read_text())
    plain["recipe"][group][key] = value
    (run / "recipe.json").write_text(json.dumps(plain))
    assert f"{group}.{key}" in refused(["resume", str(run), "--device", "cpu"], capsys)


@pytest.mark.parametrize("name", ["tensorboard", "hub"])
def test_folders_of_a_run_are_no_links_to_elsewhere(name, tmp_path, data, capsys):
    run, mine = begun(tmp_path / "run", data), tmp_path / "mine"
    mine.mkdir()
    (mine / "events.out.tfevents.1").write_text("mine")
    (run / name).symlink_to(mine)
    if name == "hub":
        message = refused(["export", str(run), "--to", "hub"], capsys)
    else:
        main(["resume", str(run), "--device", "cpu"])  # the run goes on, without that log
        message = capsys.readouterr().err
    assert "is a link" in message
    assert [file.name for file in mine.iterdir()] == ["events.out.tfevents.1"]


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    (tmp_path / "\x1b[2Jx.png").write_bytes(b"none")
    words = ["predict", str(tmp_path / "\x1b[2Jx.png"), "--model", "linglo_nano", "--device", "cpu"]
    with pytest.raises(SystemExit):
        main(words)
    out, err = capsys.readouterr()
    assert "\x1b[2J" not in out + err
