import time

import torch

from saccade.bench import interleave, peak_memory


def test_calls_are_timed_in_turns():
    order = []
    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert times["a"].rounds == 3
    assert times["a"].best <= times["a"].median


def test_a_slow_call_is_slower_and_time_is_bounded():
    start = time.perf_counter()
    times = interleave({"slow": lambda: time.sleep(0.05), "fast": int}, rounds=1000, seconds=0.3)
    assert times["slow"].best > 10 * times["fast"].best
    assert time.perf_counter() - start < 3


def test_peak_memory_is_exact():
    x = torch.ones(1000, 1000)

    def two_at_once():
        a = x + 1
        b = a + 1
        del a
        return (b + 1).numel()

    assert 8e6 <= peak_memory(two_at_once) < 8.1e6
