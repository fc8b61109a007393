import pytest

from saccade.ops import native, triton
from saccade.ops.operator import OPERATORS
from saccade.ops.where import backends


@pytest.fixture(autouse=True)
def looked_for_anew():
    native.find.cache_clear()
    triton._obstacle.cache_clear()
    yield
    native.find.cache_clear()
    triton._obstacle.cache_clear()


def test_one_line_per_kind_of_device_and_per_operator():
    lines = backends()
    assert [line.split(":")[0] for line in lines] == ["cpu", "cuda", *OPERATORS]
    assert not any("\n" in line for line in lines)


def test_says_why_a_backend_is_off(monkeypatch):
    monkeypatch.setenv("SACCADE_NATIVE", "0")
    monkeypatch.setenv("SACCADE_TRITON", "0")
    lines = backends()
    assert lines[:2] == [
        "cpu: plain PyTorch (SACCADE_NATIVE=0)",
        "cuda: plain PyTorch (SACCADE_TRITON=0)",
    ]
    assert "local_attention: tiled, shifted, unfolded, blocked" in lines
    assert not any("native" in line for line in lines[2:])


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_says_which_kernels_run():
    lines = backends()
    assert lines[0].startswith(f"cpu: C++ kernels, {native.instruction_set()} (")
    assert "aggregate: native, walked, unrolled, convolved" in lines
