"""A file is the old one or the new one, and what cannot be written is told with its disk."""

import contextlib
import errno
import os
import shutil
import sys

import pytest

from saccade import files
from saccade.cli import main


def test_a_file_is_replaced_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    files.write(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_was_removed_is_no_full_disk(tmp_path):
    for write in (files.append, files.write):
        with pytest.raises(
            OSError, match="its folder is gone; whoever moved or removed it"
        ) as error:
            write(tmp_path / "run" / "steps.jsonl", "x")
        assert "room" not in str(error.value)


def test_file_and_folder_are_fsynced_in_this_order(tmp_path, monkeypatch):
    acts, replace, sync = [], os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda *pair: acts.append("rename") or replace(*pair))

    def fsync(handle):
        acts.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write(tmp_path / "x", "content")
    assert acts == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"the disk at '/.*' is full; make room, then try again"),
        (errno.EDQUOT, r"the disk at '/.*' leaves you no more room"),
        (errno.EFBIG, "larger than files may be"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_what_cannot_be_written_names_file_disk_and_cure(number, message, tmp_path, monkeypatch):
    path = files.write(tmp_path / "x", "old")

    def full(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=message) as error:
        files.write(path, "new")
    assert str(path) in str(error.value)
    assert "Errno" not in str(error.value)
    assert error.value.errno == number
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_others_errors_about_a_full_disk_get_the_same_sentence(tmp_path, monkeypatch):
    path = tmp_path / "x.pt2"
    full = r"could not write '.*x.pt2': the disk at '/.*' is full; make room, then try again"
    for error in (OSError(errno.ENOSPC, "x"), RuntimeError(f"I/O error: {files.NO_ROOM}")):
        with pytest.raises(OSError, match=full), files.writing(path):
            raise error
    with pytest.raises(RuntimeError, match="PytorchStreamWriter"), files.writing(path):
        raise RuntimeError("PytorchStreamWriter failed")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    with pytest.raises(OSError, match=full), files.writing(path):
        raise RuntimeError("PytorchStreamWriter failed")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_an_output_on_a_full_disk(monkeypatch, capfd):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit):
            main(["--version"])
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    message = " ".join(capfd.readouterr().err.split())
    assert message == "saccade: the disk that the output goes to is full; make room, then try again"


def test_errors_of_the_system_are_told_in_a_sentence(capfd, tmp_path):
    """Their own text begins with "[Errno 36]" and names no cure."""
    for words in (
        ["predict", "cat.jpg", "--model", "a" * 5000],
        ["train", "quick", "--data", "a" * 5000, "--out", str(tmp_path / "run")],
    ):
        with pytest.raises(SystemExit):
            main(words)
        message = capfd.readouterr().err.rpartition("saccade: ")[2]
        assert "File name too long; check the name" in message
        assert "Errno" not in message
        assert len(message) < 600
    sentence = OSError("cannot use 'x': it is no folder; name a folder")
    assert files.in_a_sentence(sentence) is sentence


def test_a_pipe_or_folder_in_the_place_of_lines_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match=f"{name}': it is no ordinary file; remove it, then try"):
            files.append(tmp_path / name, "line", files.MAKE_ROOM)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="it is no ordinary file"):
        files.append(tmp_path / "pipe", "line")
    os.close(reader)


def test_no_link_is_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("x.part", "lines"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    files.write(tmp_path / "x", "new")
    with pytest.raises(OSError, match=r"'.*lines': it is a symbolic link; remove the link"):
        files.append(tmp_path / "lines", "more")
    assert (tmp_path / "mine").read_text() == "mine"
