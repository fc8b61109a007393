import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from saccade.bench import report
from saccade.bench.machine import Limits
from saccade.bench.run import Comparison, Row

ROWS = [
    Row("ours", 0.005, 0.006, 0.004, 0.005, 20, 2**20, 50.0, 0.5, 0.1, 1.0, 1.0),
    Row("theirs", 0.62, 0.63, 0.61, 0.62, 5, 500 * 2**20, 0.4, 0.004, 0.2, 152.5, 500.0),
]
RUN = Comparison(ROWS, "ours", "cpu", Limits(100.0, 20.0), {"flex": "no backward"})


def printed(thing):
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def test_the_table_fits_a_terminal():
    ours, theirs = printed(report.table(RUN)).splitlines()[-3:-1]
    assert ours.split() == [
        "ours", "5.00", "6.00", "4.00", "1.00", "1.00", "1.00", "50.0", "50%", "c",
    ]  # fmt: skip
    assert theirs.split() == [
        "theirs", "620", "630", "610", "152", "500", "500", "0.400", "20%", "m",
    ]  # fmt: skip


def test_the_notes_say_how_to_read_it():
    clock, limit, left_out = report.notes(RUN)
    assert "CPU time" in clock
    assert "those of ours" in clock
    assert "100 GFLOP/s" in limit
    assert "20 GB/s" in limit
    assert left_out == "left out: flex: no backward"
    assert "wall time" in report.notes(replace(RUN, by="wall"))[0]
    assert report.notes(replace(RUN, interrupted=True))[-1] == "interrupted: figures so far"
    nothing = Comparison([], "ours", "cpu", None, interrupted=True)
    assert report.notes(nothing)[-1] == "interrupted: nothing measured yet"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"),
     (0.00826, "0.0083"), (0.0, "0.000")],
)  # fmt: skip
def test_three_digits_count(value, text):
    assert report.digits(value) == text


def test_lines_are_stamped(tmp_path):
    for _ in range(2):
        report.append_json(RUN, tmp_path / "b.jsonl", what="test")
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["ours", "theirs"] * 2
    assert lines[0]["machine"]["torch"] == torch.__version__
    assert lines[0]["limits"] == {"gflops": 100.0, "gbytes": 20.0}
    assert lines[1]["slower"] == 152.5
    assert lines[1]["what"] == "test"
    assert lines[1]["against"] == "ours"


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]], ids=["points", "bars"])
def test_it_is_drawn(tmp_path, rows):
    pytest.importorskip("matplotlib")
    report.draw(replace(RUN, rows=rows), tmp_path / "b.png", "title")
    assert (tmp_path / "b.png").stat().st_size > 5000


def test_it_is_drawn_over_sizes(tmp_path, monkeypatch):
    """Also where one of the peers did not run at every size: time and memory, a curve each."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures, savefig = [], Figure.savefig

    def noted(figure, *arguments, **options):
        figures.append(figure)
        savefig(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", noted)
    report.draw_over({14: RUN, 28: replace(RUN, rows=ROWS[:1])}, tmp_path / "b.png", "title")
    assert (tmp_path / "b.png").stat().st_size > 5000
    curves = [
        {line.get_label(): [tuple(map(float, point)) for point in line.get_xydata()]
         for line in axes.get_lines()}
        for axes in figures[0].axes
    ]  # fmt: skip
    for lines, value in zip(curves, (_time, lambda row: row.peak / 2**20), strict=True):
        assert lines == {
            row.name: [(14.0, value(row)), (28.0, value(row))][: 2 if i == 0 else 1]
            for i, row in enumerate(ROWS)
        }


def _time(row):
    return (row.cpu if RUN.by == "cpu" else row.best) * 1e3
