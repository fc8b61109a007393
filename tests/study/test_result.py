"""How rows are compared, and what becomes of it on disk."""

import json
import math

import pytest

from saccade.study import page
from saccade.study.grid import Grid, GridRow
from saccade.study.result import (
    Difference,
    SeedResult,
    SettingResult,
    StudyResult,
    difference,
    interval,
    measured,
    printed,
)
from tests.study import tiny


def setting(*values):
    return SettingResult(
        100, {s: SeedResult(v, ((1, v),), 60.0) for s, v in enumerate(values) if v is not None}
    )


def test_the_interval_is_students():
    """By hand: sd of (1, 2, 3) is 1, so that 4.303 / sqrt(3) is half of it."""
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert interval([1.0, 3.0]) == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2))
    assert interval([5.0]) == math.inf


def test_rows_are_compared_seed_by_seed():
    """Seeds that only one of both has do not count; what they share cancels."""
    one = difference(setting(11.0, 21.0, 32.0, None), setting(10.0, 20.0, 30.0, 99.0))
    assert one.mean == pytest.approx(4 / 3)
    assert one.seeds == 3
    assert one.reach == pytest.approx(4.303 * math.sqrt(1 / 3) / math.sqrt(3))
    assert difference(setting(None, 1.0), setting(1.0)) is None


@pytest.mark.parametrize(
    ("mean", "reach", "expected", "verdict"),
    [
        (1.0, 0.5, 2.0, "yes"), (-1.0, 0.5, -0.1, "yes"), (1.0, 0.5, -2.0, "no"),
        (1.0, 1.5, 2.0, "undecided"), (1.0, math.inf, 2.0, "undecided"), (1.0, 0.5, None, ""),
        (1.0, 0.5, 0.0, ""),
    ],
)  # fmt: skip
def test_verdicts(mean, reach, expected, verdict):
    assert Difference(mean, reach, 3).verdict(expected) == verdict


def test_results_survive_the_disk():
    whole = StudyResult("top1", "cifar10", "a machine", {"base": setting(50.0, 51.5)})
    assert StudyResult.from_plain(json.loads(json.dumps(whole.plain()))) == whole


def test_the_papers_numbers_are_those_of_the_claims():
    (grid,) = tiny.study().grids
    assert [printed(grid, row) for row in grid.rows] == [69.7, 68.5]


def test_a_claim_finds_the_row_that_speaks_to_it(tmp_path, monkeypatch):
    whole = StudyResult("top1", "cifar10", "a machine", {"position=cpe": setting(50.0, 51.0)})
    (tmp_path / "linglo.json").write_text(json.dumps(whole.plain()))
    monkeypatch.setattr("saccade.study.result.FOLDER", tmp_path)
    name, one = measured("linglo_b0_cpe", "Table 6", "top-1 at 100 epochs")
    assert (name, one.mean) == ("linglo", 50.5)
    assert measured("linglo_b0_pcpe", "Table 6", "top-1 at 100 epochs") is None  # not trained
    assert measured("linglo_b0_cpe", "Table 6", "deployed backbone params") is None


def test_where_the_paper_prints_no_number_its_order_counts():
    rows = GridRow("whole"), GridRow("less", {"model.name": "other"}, order=-1)
    grid = Grid(where="Fig. 5", asks="Is less worse?", rows=rows)
    settings = {"base": setting(50.0, 51.0, 52.0), "name=other": setting(40.0, 41.2, 42.0)}
    result = StudyResult("top1", "cifar10", "", settings)
    first, second = page.cells(grid, result)
    assert (first["paper"], first["holds"], first["difference"]) == ("", "", "")
    assert (second["paper"], second["holds"]) == ("lower", "yes")
    assert second["difference"] == "-9.93 ± 0.29"
    assert "| paper | holds |" in page.table(grid, result)
