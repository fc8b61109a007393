"""Small trained runs that several test files look at: trained once, by whoever needs one first.

All test processes of one pytest share them; each file gets a copy that it may write into.
"""

import fcntl
import os
import shutil

from saccade.engine.run import Run
from saccade.recipes.recipe import change
from tests.data import scenes
from tests.engine.classify_runs import fit
from tests.engine.dense_runs import SEGMENT
from tests.engine.detect_runs import THINGS, boxes_folder

IDS = (3, 7, 200)  # of the classes in the masks


def _things(place):
    recipe = change(THINGS, schedule__epochs=45, loop__evaluate_every=45, optim__lr=5e-3)
    fit(recipe, boxes_folder(place / "data"), place / "run")


def _sea(place):
    legend = {"classes": dict(zip(IDS, scenes.NAMES, strict=True))}
    fit(SEGMENT, scenes.folder(place / "data", ids=IDS, **legend), place / "run")


def detector(factory):
    """Its data and its run; `factory` is pytest's `tmp_path_factory`."""
    return _copy(factory, _things)


def segmenter(factory):
    return _copy(factory, _sea)


def _copy(factory, train):
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    place = base / f"shared{train.__name__}"
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the first
        if not (place / "whole").exists():
            shutil.rmtree(place, ignore_errors=True)
            train(place)
            (place / "whole").touch()
    own = shutil.copytree(place, factory.mktemp("own") / "copy")
    return own / "data", Run.open(own / "run")
