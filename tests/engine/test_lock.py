"""One job at a time in a run's folder; its death ends that."""

import os
import signal
import time

import pytest

from saccade.engine import lock, session
from saccade.engine.lock import LockedError
from saccade.engine.run import Run
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, At, fit, folder


def holder(place):
    """A process that holds a folder."""
    ready, say = os.pipe()
    child = os.fork()
    if not child:
        with lock.hold(place):
            os.write(say, b"held")
            time.sleep(60)
        os._exit(0)
    assert os.read(ready, 4) == b"held"
    os.close(ready)
    os.close(say)
    return child


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    first = holder(tmp_path / "run")
    try:
        message = rf"run' is in use: process {first} on .* trains there; wait .* --out"
        with pytest.raises(LockedError, match=message), lock.hold(tmp_path / "run"):
            pass
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    with lock.hold(tmp_path / "run"):
        pass


def test_a_process_forked_meanwhile_does_not_hold_it(tmp_path):
    """Such as one that reads images and outlives the training by a moment."""
    ready, wait = os.pipe()
    with lock.hold(tmp_path):
        child = os.fork()
        if not child:
            os.close(wait)
            os.read(ready, 1)
            os._exit(0)
    with lock.hold(tmp_path):
        pass
    os.close(wait)
    os.waitpid(child, 0)
    os.close(ready)


def test_training_and_resuming_hold_it(tmp_path):
    data, out = folder(tmp_path / "data", train=6), tmp_path / "run"
    refused = []

    def try_both():
        for act in (
            lambda: fit(PLAIN, data, out),
            lambda: session.resume(out, device="cpu"),
        ):
            with pytest.raises(LockedError, match="is in use"):
                act()
            refused.append(act)

    fit(change(PLAIN, schedule__epochs=1), data, out, At(2, try_both))
    assert len(refused) == 2
    steps = [line["step"] for line in Run.open(out).lines("steps.jsonl")]
    assert steps == sorted(set(steps))


def test_a_folder_that_is_no_run_is_left_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        session.resume(tmp_path, device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_no_link_is_opened(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / lock.NAME).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic link"), lock.hold(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
