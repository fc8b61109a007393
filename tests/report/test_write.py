import builtins
import gc

import pytest

from saccade import files
from saccade.report import plots, write
from saccade.report.summary import Summary
from tests.report.run_folders import written


@pytest.fixture
def without(monkeypatch):
    """A machine on which a package is not installed."""

    def remove(package):
        real = builtins.__import__

        def importing(name, *rest, **more):
            if name.split(".")[0] == package:
                raise ImportError(f"No module named {name!r}")
            return real(name, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", importing)

    return remove


def test_everything_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    run = written(tmp_path)
    assert write.Reporter()(run) == []
    for name in ("curves.png", "confusion.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not list(tmp_path.glob("*.part"))


def test_without_matplotlib_there_is_a_page_and_one_sentence(tmp_path, without):
    run = written(tmp_path)
    without("matplotlib")
    assert write.Reporter()(run) == [write.UNDRAWN]
    page = (tmp_path / "report.html").read_text()
    assert "saccade[viz]" in page
    assert "data:image" not in page
    assert not (tmp_path / "curves.png").exists()


def test_a_picture_that_fails_leaves_the_others(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def fail(*_):
        raise RuntimeError("out of paint\nand more")

    monkeypatch.setattr(plots, "confusion", fail)
    assert write.Reporter()(written(tmp_path)) == ["no confusion.png: RuntimeError: out of paint"]
    assert (tmp_path / "curves.png").is_file()
    assert "out of paint" in (tmp_path / "report.html").read_text()


def test_a_full_disk_does_not_stop_a_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    run = written(tmp_path)
    monkeypatch.setattr(files.os, "replace", full)
    (sentence,) = write.Reporter()(run)
    assert "is full; make room" in sentence


def test_a_run_without_evaluations_does_not_either(tmp_path):
    (sentence,) = write.Reporter()(written(tmp_path, epochs=0))
    assert "no evaluation yet" in sentence


def test_reports_take_a_small_share_of_a_run(tmp_path, monkeypatch):
    """After a report that took one second the next waits for fifty; the last does not wait."""
    now = [1000.0]
    wrote = []

    def slowly(summary):
        wrote.append(now[0])
        now[0] += 1.0
        return write.Written([], ["a sentence"])

    monkeypatch.setattr(write.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(write, "write", slowly)
    report = write.Reporter()
    going = written(tmp_path / "going", epochs=2)
    for at in (1000.0, 1010.0, 1049.0, 1051.0):
        now[0] = at
        assert report(going) == []
    assert wrote == [1000.0, 1051.0]
    ended = written(tmp_path / "ended")
    for _ in range(2):
        assert report(ended) == ["a sentence"]
    assert len(wrote) == 4


def test_a_report_is_the_same_whoever_asks(tmp_path):
    pytest.importorskip("matplotlib")
    run = written(tmp_path)
    write.Reporter()(run)
    first = (tmp_path / "report.html").read_bytes()
    write.write(Summary.of(tmp_path))
    assert (tmp_path / "report.html").read_bytes() == first


@pytest.mark.slow
def test_a_report_leaves_nothing_in_memory(tmp_path):
    """Drawings refer to themselves: without a collection they pile up for thousands of steps."""
    pytest.importorskip("matplotlib")
    run = written(tmp_path)
    write.Reporter()(run)
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(3):
            write.Reporter()(run)
        assert len(gc.get_objects()) - before < 3000, "one drawing is about 12,000"
    finally:
        gc.enable()
