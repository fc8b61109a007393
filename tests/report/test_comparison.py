import json
import statistics

import pytest

from saccade.report import comparison
from saccade.report.summary import Summary
from tests.report.run_folders import EPOCHS, written

NAN = float("nan")


def groups_of(*runs):
    return comparison.groups([Summary.of(run) for run in runs])


def cells(table):
    return {str(c.header): [str(cell) for cell in c.cells] for c in table.columns}


def test_seeds_are_one_row(tmp_path):
    tops = 90.0, 92.0, 91.5
    runs = [written(tmp_path / f"s{i}", seed=i, best=top) for i, top in enumerate(tops)]
    (group,) = groups_of(*runs)
    assert group.seeds == [0, 1, 2]
    assert group.best == pytest.approx((statistics.fmean(tops), statistics.stdev(tops)))
    assert group.differs == {}
    row = cells(comparison.table([group]))
    assert row["best top-1"] == ["91.17% ± 1.04 (3)"]
    assert row["seeds"] == ["0 1 2"]
    assert row["run"] == ["s{0,1,2}"]
    assert comparison.beneath([group]) == []
    curve = group.curve()
    assert curve.label == "linglo_nano (mean of 3 ± sd)"
    assert curve.epochs == list(range(1, EPOCHS + 1))
    assert curve.mean[-1] == pytest.approx(group.best[0])
    assert curve.spread[-1] == pytest.approx(group.best[1])


def test_each_seed_may_begin_with_a_run_of_its_own(tmp_path):
    starts = [
        written(tmp_path / f"{model}-{i}", sets=[f"model.name={model}"], seed=i)
        for model in ("linglo_nano", "qna_nano")
        for i in range(2)
    ]
    later = [
        written(tmp_path / f"tuned-{start.folder.name}", "finetune", seed=i % 2,
                sets=[f"model.start={start.folder}", f"model.name={start.recipe.model.name}"])
        for i, start in enumerate(starts)
    ]  # fmt: skip
    groups = groups_of(*later)
    assert [group.seeds for group in groups] == [[0, 1], [0, 1]]
    assert [group.differs for group in groups] == [{}, {}]
    longer = written(tmp_path / "longer", sets=["schedule.epochs=3"])
    other = written(tmp_path / "o", "finetune", sets=[f"model.start={longer.folder}"], seed=2)
    assert len(groups_of(*later, other)) == 3
    assert "model.start" in groups_of(*later, other)[0].differs


def test_what_differs_is_a_column(tmp_path):
    a = written(tmp_path / "a", best=90.0)
    b = written(tmp_path / "b", best=95.0, sets=["optim.lr=0.5", "model.name=resnet18"])
    groups = groups_of(a, b)
    assert [group.model for group in groups] == ["resnet18", "linglo_nano"]  # the best first
    assert groups[0].differs == {"optim.lr": 0.5}
    row = cells(comparison.table(groups))
    assert row["optim.lr"] == ["0.5", "0.002"]
    assert row["params M"] == ["11.18", "0.55"]
    assert row["run"] == ["b", "a"], "runs are named"
    assert comparison.beneath(groups) == []


def test_runs_of_one_name_are_named_in_full(tmp_path):
    a, b = (written(tmp_path / place / "run", seed=i) for i, place in enumerate("ab"))
    longer = written(tmp_path / "c", sets=["schedule.epochs=3"])
    (one,) = groups_of(a, b)
    assert cells(comparison.table([one]))["run"] == [f"{tmp_path}/{{a/run,b/run}}"]
    assert "c" in cells(comparison.table(groups_of(a, longer)))["run"]


def test_many_differences_are_told_beneath(tmp_path):
    groups = groups_of(written(tmp_path / "a"), written(tmp_path / "b", "scratch"))
    row = cells(comparison.table(groups))
    assert "augment.size" not in row
    lines = comparison.beneath(groups)
    assert any(line.startswith("b: ") and "augment.size=64" in line for line in lines)
    assert {group.label for group in groups} == {"linglo_nano, a", "linglo_nano, b"}


def test_an_unfinished_run_stands_by_itself(tmp_path):
    groups = groups_of(
        written(tmp_path / "a", seed=0), written(tmp_path / "b", seed=1),
        written(tmp_path / "c", seed=2, epochs=3),
    )  # fmt: skip
    assert [len(group.runs) for group in groups] == [2, 1]
    assert cells(comparison.table(groups))["epochs"] == [f"{EPOCHS}", f"3 of {EPOCHS}"]
    assert "a run that is not finished stands by itself" in comparison.beneath(groups)
    assert groups[1].label == "linglo_nano, c, not finished"


def test_other_data_is_never_averaged_and_is_warned_of(tmp_path):
    groups = groups_of(
        written(tmp_path / "a", seed=0), written(tmp_path / "b", seed=1, data="pets")
    )
    assert len(groups) == 2
    assert comparison.beneath(groups) == [
        "these runs saw different data: their figures do not compare"
    ]
    same_path = groups_of(written(tmp_path / "c"), written(tmp_path / "d", seed=1, classes=5))
    assert len(same_path) == 2
    assert len(comparison.beneath(same_path)) == 1


def test_a_seed_twice_is_told(tmp_path):
    groups = groups_of(written(tmp_path / "a"), written(tmp_path / "b"))
    assert comparison.beneath(groups) == ["some runs share a seed: their spread says nothing"]


def test_different_tasks_do_not_compare(tmp_path):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", figures=lambda _: {"ap": 0.3})
    with pytest.raises(
        ValueError, match=r"judged by top-1 and .*b' by ap: runs of different tasks"
    ):
        groups_of(a, b)


def test_nan_is_last_and_null(tmp_path):
    bad = written(tmp_path / "a", sets=["optim.lr=9"], figures=lambda _: {"top1": NAN})
    groups = groups_of(bad, written(tmp_path / "b"))
    assert groups[1].plain()["best"] is None
    json.dumps([group.plain() for group in groups], allow_nan=False)


def test_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "runs/b", "runs/deep/c"):
        written(name)
    written("runs/fresh", epochs=0)
    (tmp_path / "runs/notes").mkdir()

    def names(*words):
        return [one.run.folder.name for one in comparison.find_runs(words)[0]]

    assert names("runs/a") == ["a"]
    assert names("runs/a", "runs/b", "./runs/a") == ["a", "b"]
    assert names("runs/[ab]") == ["a", "b"]
    assert names("runs") == ["a", "b", "c"]
    _, sentences = comparison.find_runs(["runs/*"])
    assert sentences == [
        "left out: 'runs/fresh' has no evaluation yet; it is written after the first epoch"
    ]


def test_a_recipe_of_another_version_in_a_pattern_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written("a")
    written("b")
    (tmp_path / "b/recipe.json").write_text("{}")
    summaries, (sentence,) = comparison.find_runs(["*"])
    assert len(summaries) == 1
    assert "b/recipe.json" in sentence


@pytest.mark.parametrize(
    ("word", "kind", "says"),
    [
        ("gone", FileNotFoundError, "no run 'gone'"),
        ("gone*", FileNotFoundError, "no run matches"),
        ("notes", FileNotFoundError, "holds no run"),
        ("fresh", ValueError, "no evaluation yet"),
        ("fres*", ValueError, "no run to report; left out: 'fresh' has no evaluation yet"),
    ],
)
def test_what_is_no_run(tmp_path, monkeypatch, word, kind, says):
    monkeypatch.chdir(tmp_path)
    written("fresh", epochs=0)
    (tmp_path / "notes").mkdir()
    with pytest.raises(kind, match="report: ") as caught:
        comparison.find_runs([word])
    assert says in str(caught.value)
