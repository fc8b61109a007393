import json
import time

import pytest
import torch

from saccade import bench
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


def test_ratios_refer_to_the_baseline():
    x = torch.ones(200, 200)
    calls = {"one": lambda: x @ x, "many": lambda: [x @ x for _ in range(30)]}
    one, many = bench.compare(calls, rounds=5)
    assert one.slower == one.heavier == 1
    assert many.slower > 5
    assert many.heavier == pytest.approx(30, rel=0.01)
    one, many = bench.compare(calls, base="many", rounds=5)
    assert one.slower < 0.5
    with pytest.raises(ValueError, match=r"nothing named 'on' ran; did you mean 'one'\?"):
        bench.compare(calls, base="on", rounds=1)


def test_models_of_ours_and_of_timm():
    calls = bench.models(["linglo_nano", "resnet18"], size=32)
    assert [row.name for row in bench.compare(calls, rounds=1)] == ["linglo_nano", "resnet18"]
    bench.models(["linglo_nano"], size=32, batch=2, train=True)["linglo_nano"]()
    with pytest.raises(ValueError, match="no model named 'linglo_b7'; did you mean 'linglo_b0'"):
        bench.models(["linglo_b7"])


def test_limits_are_of_this_world():
    found = bench.limits(256)
    assert 0.1 < found["GFLOP/s"] < 1e6
    assert 0.1 < found["GB/s"] < 1e5


def test_rows_are_written_with_versions_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = bench.compare({"a": lambda: torch.ones(9) + 1}, rounds=1)
    for _ in range(2):
        bench.append_json(rows, tmp_path / "b.jsonl", what="test")
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["a", "a"]
    assert lines[0]["machine"]["torch"] == torch.__version__
    bench.draw(rows, tmp_path / "b.png", "title")
    assert (tmp_path / "b.png").stat().st_size > 5000
    assert bench.table(rows, "title").row_count == 1
