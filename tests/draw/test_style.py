import os

import numpy as np
import pytest

from saccade.draw.style import plain_style, unmarked
from saccade.report import plots
from saccade.report.summary import Summary
from saccade.view.sheet import sheet
from tests.report.run_folders import written

matplotlib = pytest.importorskip("matplotlib")


def test_the_programs_settings_are_as_before():
    with matplotlib.rc_context({"font.size": 31}):
        with plain_style():
            assert matplotlib.rcParams["font.size"] == matplotlib.rcParamsDefault["font.size"]
        assert matplotlib.rcParams["font.size"] == 31


def test_settings_of_a_stranger_start_no_latex(tmp_path, monkeypatch):
    """As a matplotlibrc in the working folder would have them."""
    for program in ("latex", "tex", "dvipng"):
        (tmp_path / program).write_text(f"#!/bin/sh\ntouch {tmp_path / 'marker'}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    summary = Summary.of(written(tmp_path / "run", epochs=2))
    maps = {"stage 1": np.ones((2, 8, 8), np.float32)}
    with matplotlib.rc_context({"text.usetex": True}):
        plots.curves(summary)
        plots.confusion([[1, 0], [0, 1]], ["a", "b"])
        sheet(np.zeros((8, 8, 3), np.float32), maps, "a title", ["one", "two"])
    assert not (tmp_path / "marker").exists()


def test_dollars_are_no_formula():
    assert unmarked("$x$") == r"\$x\$"
    maps = {r"$\frac{$": np.ones((1, 8, 8), np.float32)}
    names = [r"$\undefined{$ $"]
    drawn = sheet(np.zeros((8, 8, 3), np.float32), maps, r"$\frac{ $", names)
    assert drawn.size[0] > 100
