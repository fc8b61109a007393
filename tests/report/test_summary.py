import json
import math
from itertools import pairwise

import pytest

from saccade.files import write_json
from saccade.recipes import book
from saccade.recipes.recipe import override
from saccade.report.summary import Summary, confused, differences, finite, flat, setting, thinned
from saccade.tasks.classify.metric import Confusion
from saccade.tasks.classify.task import ClassifyTask
from tests.report.run_folders import EPOCHS, written

NAN = float("nan")


def test_the_first_figure_is_the_one_a_task_is_judged_by():
    metric = Confusion(["a", "b"])
    metric.matrix += 1
    assert next(iter(metric.compute())) == ClassifyTask.best


def test_best_and_last(tmp_path):
    values = {1: 50.0, 2: 70.0, 3: NAN, 4: 70.0, 5: 60.0}
    one = Summary.of(
        written(tmp_path, epochs=5, figures=lambda epoch: {"top1": values[epoch], "loss": 1.0})
    )
    assert one.figure == "top1"
    assert one.best["epoch"] == 2  # the first of equals, and no NaN
    assert one.last["epoch"] == 5
    assert not one.finished
    assert one.minutes == pytest.approx(5 * 31 / 60)
    assert one.per_epoch == 20
    assert any(f"not finished: epoch 5 of {EPOCHS}" in sentence for sentence in one.sentences())


def test_nothing_but_nan_still_has_a_best(tmp_path):
    one = Summary.of(written(tmp_path, figures=lambda _: {"top1": NAN, "loss": NAN}))
    assert math.isnan(one.value(one.best))
    json.dumps(one.plain(), allow_nan=False)


def test_a_run_without_an_evaluation_is_no_summary(tmp_path):
    run = written(tmp_path, epochs=0, sets=["loop.evaluate_every=5"])
    with pytest.raises(ValueError, match="no evaluation yet; it is written after 5 epochs"):
        Summary.of(run)


def test_a_step_that_was_done_again_counts_once(tmp_path):
    run = written(tmp_path, epochs=2)
    run.write({"step": 40, "loss": {"cross_entropy": 9.0}, "rate": 0.0}, "steps.jsonl")
    run.write({**run.lines()[-1], "val": {"top1": 1.0}})
    one = Summary.of(run)
    assert [line["step"] for line in one.steps] == list(range(1, 41))
    assert one.steps[-1]["loss"] == {"cross_entropy": 9.0}
    assert [line["val"]["top1"] for line in one.lines][1:] == [1.0]


def test_torn_and_missing_files_are_empty_ones(tmp_path):
    run = written(tmp_path)
    (tmp_path / "tables.json").write_text('{"confusion": [[1,')
    (tmp_path / "environment.json").unlink()
    write_json(tmp_path / "baseline.json", {"name": "guessing", "top1": NAN})
    write_json(tmp_path / "bad.json", ["no", "mapping"])
    one = Summary.of(run)
    assert one.tables.confusion == ([], [])
    assert one.environment == one.bad == {}
    assert one.baseline is None


def test_baseline(tmp_path):
    run = written(tmp_path)
    write_json(tmp_path / "baseline.json", {"name": "linear", "top1": 90.5})
    assert Summary.of(run).baseline == ("linear", 90.5)


def test_changed_is_told_from_the_named_recipe(tmp_path):
    sets = ["optim.lr=0.5", "model.options.window=5"]
    one = Summary.of(written(tmp_path / "a", sets=sets))
    assert one.changed == {"optim.lr": (0.5, 2e-3), "model.options.window": (5, None)}
    assert Summary.of(written(tmp_path / "b", name="mine", sets=sets)).changed == {}


def test_differences_see_through_tuples_and_kinds():
    quick, distill = book.find("quick"), book.find("distill")
    assert differences(quick, quick) == {}
    assert differences(quick, distill)["task.kind"] == ("Classify", "Distill")
    assert differences(quick, distill)["task.teacher"] == (None, "efficientnet_lite0")
    other = override(quick, ["augment.scale=[0.6, 1.0]"])
    assert differences(quick, other) == {}
    assert "about" not in flat(quick)


def test_every_setting_reads_as_the_command_line_takes_it():
    quick = book.find("quick")
    for key, value in flat(quick).items():
        if key not in ("task.kind", "model.start", "augment.rand"):  # empty text
            assert flat(override(quick, [f"{key}={setting(value)}"])) == flat(quick), key


def test_parameters(tmp_path):
    one = Summary.of(written(tmp_path / "a", sets=["model.name=resnet18"], classes=7))
    assert one.parameters() == 11_180_103  # resnet18 with seven classes
    gone = Summary.of(written(tmp_path / "b", sets=["model.name=gone_net"]))
    assert gone.parameters() is None


def test_confused_pairs_come_by_images_then_by_share():
    matrix = [[5, 3, 0], [3, 90, 0], [0, 1, 0]]
    pairs = confused(matrix, ["a", "b", "c"], most=2)
    assert [tuple(pair) for pair in pairs] == [("a", "b", 3, 8), ("b", "a", 3, 93)]
    assert confused([[2, 0], [0, 1]], ["a", "b"]) == []


def test_json_has_null_for_what_is_no_number():
    assert finite({"a": [NAN, 1.0, {"b": math.inf}]}) == {"a": [None, 1.0, {"b": None}]}


def test_long_runs_are_thinned(tmp_path):
    path = tmp_path / "steps.jsonl"
    assert thinned(path) == []
    path.write_text("".join(json.dumps({"step": i}) + "\n" for i in range(1, 1001)) + '{"step": 10')
    steps = [line["step"] for line in thinned(path, most=100)]
    assert steps[0] == 1
    assert steps[-1] == 1000, "an incomplete line is left out"
    assert 50 <= len(steps) <= 102
    assert len({b - a for a, b in pairwise(steps[:-1])}) == 1
    assert len(thinned(path)) == 1000
