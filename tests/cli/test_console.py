"""What is printed, and where to."""

import json
import os
import pty
import subprocess
import sys

import pytest

from saccade.cli import console
from saccade.recipes import book
from tests.cli.program import ROOT


def test_text_is_printed_as_it_is(capsys):
    for text in ("pip install 'saccade[detection]'", "[red]a[/]", "a [1] b", "x" * 300):
        console.say(text)
        console.note(text)
        assert capsys.readouterr() == (f"{text}\n", f"{text}\n")


def test_an_extra_is_named_whole(typed):
    _, out, _ = typed("recipes", "detect_detr")
    assert "pip install 'saccade[detection]'" in out


def test_an_extra_that_is_missing_is_named_whole(typed, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.cbook", None)
    code, out, err = typed("tour")
    assert (code, out) == (1, "")
    assert "pip install 'saccade[viz]'" in err


def at_80_columns(*words):
    """What a person sees in a terminal of 80 columns."""
    host, guest = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "saccade", *words]
    with subprocess.Popen(program, stdout=guest, stderr=guest, env=environment) as process:
        os.close(guest)
        text = b""
        while True:
            try:
                part = os.read(host, 65536)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            text += part
    os.close(host)
    assert process.returncode == 0
    return text.decode().replace("\r\n", "\n")


def test_names_are_whole_in_a_narrow_terminal():
    text = at_80_columns("recipes")
    lines = text.splitlines()
    assert "…" not in text
    assert max(map(len, lines)) <= 80
    words = {line.split()[0] for line in lines if line.strip()}
    assert set(book.RECIPES) <= words
    assert {recipe.model.name for recipe in book.RECIPES.values()} <= {
        word.rstrip(":") for word in text.split()
    }
    assert "qna_table3_q8_16_32_64_s8_16_32_64" in at_80_columns("list", "--all")


def test_names_are_whole_in_a_pipe(typed):
    _, out, err = typed("recipes")
    rows = out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == list(book.RECIPES), "a line each"
    assert [row.split()[2].rstrip(":") for row in rows] == [
        recipe.model.name for recipe in book.RECIPES.values()
    ]
    assert "saccade recipes NAME" in err


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--json"],
        ["list", "nano", "--json", "--all"],
        ["show", "linglo_nano", "--json"],
        ["recipes", "--json"],
        ["recipes", "quick", "--json"],
    ],
)
def test_json_is_json_alone(typed, words):
    code, out, err = typed(*words)
    assert (code, err) == (0, "")
    assert json.loads(out)
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "nothing*"], 1),
        (["recipes", "sas"], 1),
        (["trian"], 2),
        (["--nothing"], 2),
        (["list", "--nothing"], 2),
        (["train"], 2),
        (["train", "quick", "--epochs", "three"], 2),
    ],
)
def test_what_is_wrong_goes_to_stderr(typed, words, code):
    got, out, err = typed(*words)
    assert (got, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("saccade: ")


def test_a_reader_that_has_seen_enough():
    result = subprocess.run(
        f"{sys.executable} -m saccade list --all | head -1",
        shell=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert result.stdout.split()[0] == "model"
    assert result.stderr == "" or "Traceback" not in result.stderr
