"""How long a trial may take, by what its processes do and not by the clock, as machines are busy.

A process goes on while it runs on the CPU or waits in line for it; Linux tells both for each of its
threads. One that does neither for long stands still, and one that runs for very long has no end.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PROC = Path("/proc")
LEAST = 0.2  # seconds of running or waiting for the CPU that are a sign of life


class Watch:
    """What some processes have done since they were last looked at."""

    def __init__(self, pids: Callable[[], Iterable[int]]):
        self.pids = pids
        self.ran, self.moved, self.seen = 0.0, 0.0, {}
        self.look()
        self.ran = 0.0  # what they did before counts for nothing

    def look(self) -> float:
        """Seconds that their threads ran or waited for the CPU since the last look."""
        seen, moved = {}, 0.0
        for pid in self.pids():
            for thread, (ran, queued) in threads(pid).items():
                before = self.seen.get((pid, thread), (0.0, 0.0))
                self.ran += max(0.0, ran - before[0])
                moved += max(0.0, ran - before[0]) + max(0.0, queued - before[1])
                seen[pid, thread] = ran, queued
        self.seen = seen
        return moved

    def over(self, most: float) -> str | None:
        """Why there is no more to wait for, at the end of a time in which something should move."""
        moved = self.look()
        if self.ran > most:
            return f"no end, after {self.ran:.1f} s of the CPU"
        if moved < LEAST:
            return f"it stands still, after {self.ran:.1f} s of the CPU"
        return None


def threads(pid: int) -> dict[str, tuple[float, float]]:
    """Seconds that each thread of a process ran, and waited to run; none where nobody tells."""
    times = {}
    with contextlib.suppress(OSError):
        for folder in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                ran, queued, _ = map(int, (folder / "schedstat").read_text().split())
                times[folder.name] = ran / 1e9, queued / 1e9
    return times


def family(pid: int) -> set[int]:
    """A process and all that it started, as far as they still run."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for folder in PROC.iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    words = (folder / "stat").read_text().rpartition(")")[2].split()
                    parents[int(folder.name)] = int(words[1])
    known = {pid}
    while more := {child for child, parent in parents.items() if parent in known} - known:
        known |= more
    return known


def own() -> set[int]:
    return family(os.getpid())


def waited(act: Callable[[float], bool], pids: Callable[[], Iterable[int]], still: float,
           most: float) -> str | None:  # fmt: skip
    """Call `act(seconds)` until it says that it is over; why it was given up, or None.

    Args:
        act: waits so many seconds at most, and says whether that is over which is waited for
        pids: the processes that work on it
        still: seconds in which they must show a sign of life
        most: seconds of the CPU that they may take
    """
    watch = Watch(pids)
    while True:
        until = time.monotonic() + still
        while (left := until - time.monotonic()) > 0:
            if act(left):
                return None
        why = watch.over(most)
        if why is not None:
            return None if act(0) else why
