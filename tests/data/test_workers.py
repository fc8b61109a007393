import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from saccade.data.loader import Loader


class Slow:
    """A set that says who reads it."""

    def __init__(self, seconds=0.02):
        self.seconds = seconds

    def __len__(self):
        return 400

    def read(self, i):
        time.sleep(self.seconds)
        return torch.zeros(3, 1, 1), os.getpid()

    def name(self, i):
        return str(i)


def whose(image, pid):
    return image, {"pid": pid, "threads": torch.get_num_threads()}


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_workers_outlive_epochs_and_end_with_the_loader():
    batches = Loader(Slow(), whose, batch=4, workers=2)
    seen = set()
    for n in range(3):
        for step, (batch,) in enumerate(batches.epoch(n)):
            seen |= set(batch.target["pid"].tolist())
            assert set(batch.target["threads"].tolist()) == {1}
            if step == 3:
                break
    assert len(seen) == 2
    assert os.getpid() not in seen
    batches.close()
    deadline = time.time() + 10
    while any(map(alive, seen)) and time.time() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, seen))


def test_a_killed_worker_is_told_in_one_sentence():
    batches = Loader(Slow(), whose, batch=4, workers=1)
    steps = batches.epoch(0)
    (batch,) = next(steps)
    os.kill(int(batch.target["pid"][0]), signal.SIGKILL)
    time.sleep(0.3)  # not here, in the middle of a step
    with pytest.raises(RuntimeError, match="Loader: a worker process was killed"):
        list(steps)
    next(batches.epoch(1))  # new workers
    batches.close()


def test_a_mistake_in_a_worker_is_told_as_it_is():
    def mistaken(image, target):
        raise RuntimeError("no such colour")

    batches = Loader(Slow(), mistaken, batch=4, workers=1)
    with pytest.raises(RuntimeError, match="no such colour"):
        list(batches.epoch(0))
    start = time.time()
    batches.close()
    assert time.time() - start < 3


CTRL_C = """
import os, signal
from tests.data.test_workers import Loader, Slow, whose
signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGINT))
for k in range(12):
    made = Loader(Slow(0.0), whose, batch=4, workers=2)
    next(made.epoch(0))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05 + 0.0037 * k, 1.0)  # again, if one is lost
        while True:
            for parts in made.epoch(1):
                pass
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("stopped", flush=True)
    made.close()
"""


@pytest.mark.slow
def test_ctrl_c_is_quiet():
    run = subprocess.run(
        [sys.executable, "-c", CTRL_C], capture_output=True, text=True, start_new_session=True,
        timeout=100,
    )  # fmt: skip
    assert run.stderr == ""
    assert run.stdout == "stopped\n" * 12
    assert run.returncode == 0
