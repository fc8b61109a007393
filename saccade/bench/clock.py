"""Time and memory of calls that take turns.

Timings on a shared machine drift; two numbers taken minutes apart say little. So everything to be
compared runs in turns, round after round, and what is reported is the ratio within one run. The CPU
time of the calling thread leaves out what other programs took from it; with several threads only
the wall clock sees them wait for each other.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]
Watch = Callable[[str, float], None]  # who is next, and how much of the whole is done (0 to 1)

AT_ONCE = 10  # quick calls run up to so often a turn, for at most a quarter of the slowest's time


@dataclass(frozen=True)
class Timing:
    """Seconds for one call, by the wall clock and by the CPU time of the calling thread."""

    best: float
    median: float
    cpu: float
    cpu_median: float
    times: int


@dataclass
class Samples:
    """Seconds of every call so far."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, call: Call) -> None:
        c, w = time.thread_time(), time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.wall.append(time.perf_counter() - w)
        self.cpu.append(time.thread_time() - c)

    def timing(self) -> Timing:
        wall, cpu = self.wall, self.cpu
        return Timing(
            min(wall), statistics.median(wall), min(cpu), statistics.median(cpu), len(wall)
        )


def interleave(
    calls: Mapping[str, Call], rounds: int = 20, seconds: float = 30.0
) -> dict[str, Timing]:
    """Time each call in turn, at most `rounds` times or for about `seconds`, after one warm-up."""
    samples: dict[str, Samples] = {}
    sample(calls, samples, rounds, seconds)
    return {name: one.timing() for name, one in samples.items()}


def sample(
    calls: Mapping[str, Call],
    into: dict[str, Samples],
    rounds: int,
    seconds: float,
    prepare: Callable[[str, Call], None] = lambda _, call: call(),
    watch: Watch = lambda *_: None,
) -> None:
    """Fill `into` round by round, at least two; after an interrupt, its complete rounds can be
    used.

    `prepare` comes once before a call's first turn: a warm-up, if nothing is said.
    """
    start = time.perf_counter()
    often = dict.fromkeys(calls, 1)
    for round in range(rounds):
        spent = time.perf_counter() - start
        if round >= 2 and spent > seconds:
            break
        for i, (name, call) in enumerate(calls.items()):
            by_count = (round + i / len(calls)) / rounds
            watch(name, max(by_count, min(spent / seconds, 1.0)) if round else by_count)
            if round == 0:
                prepare(name, call)
                into[name] = Samples()
            for _ in range(often[name]):
                into[name].take(call)
        if round == 0:
            slowest = max(min(s.wall) for s in into.values())
            for name, s in into.items():
                often[name] = max(1, min(AT_ONCE, int(slowest / 4 / max(min(s.wall), 1e-9))))


def peak_memory(call: Call, device: str = "cpu") -> int:
    """Bytes that torch held at most during the call, beyond what it held before: exact.

    On CPU this follows torch's own allocations, so it is the same on every run and does not see
    what a library keeps for itself; on CUDA it is the caching allocator's figure.
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    bytes_now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        bytes_now += event.nbytes()
        most = max(most, bytes_now)
    return most
