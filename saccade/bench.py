"""Latency and peak memory of several things side by side, as ratios.

Timings on a shared machine drift; two numbers taken minutes apart say little. So everything to be
compared runs in turns, round after round, and what is reported is the ratio within one run.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: wall-clock best and median, and CPU time of the process (best)."""

    best: float
    median: float
    cpu: float
    rounds: int


def interleave(
    calls: Mapping[str, Call], rounds: int = 20, seconds: float = 30.0
) -> dict[str, Timing]:
    """Time each call in turn, at most `rounds` times or for about `seconds`, after one warm-up."""
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    start = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - start > seconds:
            break
        for name, call in calls.items():
            p, t = time.process_time(), time.perf_counter()
            call()
            _finish()
            wall[name].append(time.perf_counter() - t)
            cpu[name].append(time.process_time() - p)
    return {
        name: Timing(
            min(wall[name]), statistics.median(wall[name]), min(cpu[name]), len(wall[name])
        )
        for name in calls
    }


def peak_memory(call: Call) -> int:
    """Bytes that torch held at most during the call, beyond what it held before: exact.

    On CPU this follows torch's own allocations, so it is the same on every run and does not see
    what a library keeps for itself; on CUDA it is the caching allocator's figure.
    """
    gc.collect()
    if torch.cuda.is_available():
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
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
