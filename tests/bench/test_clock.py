import time
from types import SimpleNamespace

import pytest
import torch

from saccade.bench import clock
from saccade.bench.clock import AT_ONCE, Samples, interleave, peak_memory, sample


def test_calls_take_turns(monkeypatch):
    order = []
    now = SimpleNamespace(perf_counter=lambda: float(len(order)), thread_time=lambda: 0.0)
    monkeypatch.setattr(clock, "time", now)  # a call takes a second, whatever else runs here

    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "a", "b", "b", "a", "b", "a", "b"]  # a warm-up first, then turns
    assert times["a"].times == 3
    assert times["a"].best == times["a"].median == 1
    assert times["a"].cpu <= times["a"].cpu_median


def test_quick_calls_run_more_often_and_time_is_bounded():
    start = time.perf_counter()
    times = interleave({"slow": lambda: time.sleep(0.05), "fast": int}, rounds=1000, seconds=0.3)
    assert times["slow"].best > 10 * times["fast"].best
    assert times["fast"].times == AT_ONCE * (times["slow"].times - 1) + 1
    assert time.perf_counter() - start < 3


def test_cpu_time_leaves_out_what_others_took():
    times = interleave({"asleep": lambda: time.sleep(0.05)}, rounds=2)
    assert times["asleep"].best >= 0.05
    assert times["asleep"].cpu < 0.01


def test_an_interrupt_leaves_what_was_measured():
    turns = iter(range(3))

    def tired():
        if next(turns, None) is None:
            raise KeyboardInterrupt

    samples: dict[str, Samples] = {}
    seen = []
    with pytest.raises(KeyboardInterrupt):
        sample(
            {"fine": lambda: time.sleep(0.001), "tired": tired}, samples, 9, 9,
            watch=lambda name, result: seen.append((name, result)),
        )  # fmt: skip
    assert samples["fine"].timing().times >= 2
    assert len(samples["tired"].cpu) >= 1
    shares = [result for _, result in seen]
    assert [name for name, _ in seen[:3]] == ["fine", "tired", "fine"]
    assert shares == sorted(shares)
    assert 0 == shares[0] < shares[-1] <= 1


def test_peak_memory_is_exact():
    x = torch.ones(1000, 1000)

    def two_at_once():
        a = x + 1
        b = a + 1
        del a
        return (b + 1).numel()

    assert 8e6 <= peak_memory(two_at_once) < 8.1e6
