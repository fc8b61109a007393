"""CONTRIBUTING.md names what exists, and its paths are those that images take."""

import importlib
import re
import sys

import pytest

from saccade.engine import session
from saccade.infer.predict import guesses
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, fit, folder
from tests.test_house import ROOT, SOURCE

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SECTION = TEXT[TEXT.index("## The path of one image") : TEXT.index("## To add a task")]
TRAIN, PREDICT = SECTION.split("Through `saccade predict")
LINE = re.compile(r"^ {4,}([a-z_]+(?:\.\w+)+)", re.MULTILINE)


def resolved(name):
    """The function that a dotted name means, `saccade.` left out."""
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module("saccade." + ".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"no module of {name}")


def called(action):
    """The code objects of all functions that an action calls."""
    codes = set()

    def note(frame, event, _):
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return codes


def code_of(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function.__code__


@pytest.mark.parametrize("name", LINE.findall(SECTION))
def test_every_function_on_the_paths_exists(name):
    assert callable(resolved(name))


def test_the_paths_are_those_that_images_take(tmp_path):
    """Each function that is named is called; in one process, so that workers are seen too."""
    data = folder(tmp_path / "data")
    recipe = change(PLAIN, schedule__epochs=1)
    codes = called(lambda: fit(recipe, data, tmp_path / "run"))
    missed = [name for name in LINE.findall(TRAIN) if code_of(resolved(name)) not in codes]
    assert missed == []
    assert session.open_model(tmp_path / "run").classes == ["blue", "green", "red"]
    codes = called(lambda: list(guesses([str(data / "val")], tmp_path / "run")))
    missed = [name for name in LINE.findall(PREDICT) if code_of(resolved(name)) not in codes]
    assert missed == []


def test_files_that_are_named_exist():
    for name in re.findall(
        r"`((?:tests|saccade|models|layers|tasks|recipes|ops)/[\w/]+\.py)`", TEXT
    ):
        if "WORD" not in name:
            assert (ROOT / name).is_file() or (SOURCE / name).is_file(), name
