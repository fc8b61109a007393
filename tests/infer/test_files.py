import io
from pathlib import Path

import pytest
from PIL import Image

from saccade.infer.files import free, paths_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in/frame_10.png", "in/frame_9.png", "in/deep/a.jpg", "in/out/old.png", "b.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(name)
    Path("in/notes.txt").touch()
    return tmp_path


def named(*words, out=None):
    return [str(path) for path in paths_of(words, "predict", out)]


def test_files_folders_and_patterns(folder):
    assert named("b.png", "gone.png") == ["b.png", "gone.png"]
    assert named("in", out=Path("in/out")) == [
        "in/deep/a.jpg", "in/frame_9.png", "in/frame_10.png",
    ]  # fmt: skip
    assert named("in/*.png") == ["in/frame_9.png", "in/frame_10.png"]
    assert named("in/**/*.jpg") == ["in/deep/a.jpg"]
    with pytest.raises(FileNotFoundError, match=r"predict: nothing matches '\*\.gif'"):
        named("*.gif")


@pytest.mark.parametrize("end", ["\n", "\0", "\r\n"], ids=["lines", "null", "dos"])
def test_a_list_on_stdin(folder, monkeypatch, end):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"b.png{end}in/deep/a.jpg{end}"))
    assert named("-", "gone.png") == ["b.png", "in/deep/a.jpg", "gone.png"]


def test_an_empty_list_is_refused(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(FileNotFoundError, match="predict: stdin names no picture"):
        named("-")


def test_names_are_free():
    taken = {"a"}
    assert [free("a", taken), free("a", taken), free("b", taken)] == ["a-2", "a-3", "b"]
