import json
from pathlib import Path

import pytest

from saccade import files
from saccade.engine.run import Run, environment
from saccade.files import write_json
from saccade.recipes.recipe import change
from tests.engine.classify_runs import FULL


def new_run(folder):
    return Run.create(folder, "quick", FULL, "somewhere", ["a", "b"])


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = new_run(tmp_path / "run")
    assert Run.open(tmp_path / "run") == run
    surroundings = json.loads((run.folder / "environment.json").read_text())
    assert {"saccade", "torch", "timm", "python", "command"} <= surroundings.keys()
    assert surroundings["torch"] == environment()["torch"]


def test_a_torn_line_is_no_line_and_the_future_is_forgotten(tmp_path):
    run = new_run(tmp_path / "run")
    for step in (3, 6, 9):
        run.write({"step": step})
    with open(run.folder / "report.jsonl", "a") as file:
        file.write('{"step": 12, "va')
    assert [line["step"] for line in run.lines()] == [3, 6, 9]
    run.rewind(6)
    assert [line["step"] for line in run.lines()] == [3, 6]
    run.write({"step": 9})
    assert [line["step"] for line in run.lines()] == [3, 6, 9]
    assert run.lines("steps.jsonl") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "x"}', '{"recipe": {"optim": 3}}'])
def test_what_is_no_recipe_is_said_to_be_none(text, tmp_path):
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(ValueError, match="recipe"):
        Run.open(tmp_path)


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    run = new_run(tmp_path / "run")
    monkeypatch.setattr(files, "NO_LINKS", 0)  # for the device that is always full
    (run.folder / "steps.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"steps\.jsonl.*is full; make room, then 'saccade resume"):
        run.write({"step": 1}, "steps.jsonl")


@pytest.mark.parametrize(
    "change_of",
    [{"recipe": None}, {"recipe": 7}, {"classes": None}, {"stated": "x"}, {"stated": 0.5},
     {"name": ["a"]}, {"recipe": {"model": []}}],
)  # fmt: skip
def test_a_description_that_saccade_does_not_write_is_refused(tmp_path, change_of):
    """It is read from recipe.json, or where that is lost from the last checkpoint."""
    run = new_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"'checkpoint' is no recipe that saccade wrote \(.+\)"):
        Run.read(run.folder, {**run.plain(), **change_of}, Path("checkpoint"))
    assert Run.read(run.folder, run.plain(), Path("checkpoint")) == run


@pytest.mark.parametrize(("options", "old"), [({}, "zero"), ({"border": "mask"}, "mask")])
def test_a_run_of_an_earlier_version_goes_on_with_the_border_it_began_with(tmp_path, options, old):
    recipe = change(FULL, model__name="sasa_nano", model__options=options)
    run = Run.create(tmp_path / "run", "quick", recipe, "somewhere", ["a", "b"])
    assert Run.open(run.folder) == run
    plain = json.loads((run.folder / "recipe.json").read_text())
    assert plain.pop("stated") == {"border": "mask"}
    write_json(run.folder / "recipe.json", plain)
    resumed = Run.open(run.folder)
    assert resumed.recipe.model.options == {"border": old}
    write_json(run.folder / "recipe.json", resumed.plain())
    assert Run.open(run.folder) == resumed
