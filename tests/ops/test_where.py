import pytest

from saccade.ops import native, triton
from saccade.ops.where import backends


@pytest.fixture(autouse=True)
def looked_for_anew():
    native.find.cache_clear()
    triton._obstacle.cache_clear()
    yield
    native.find.cache_clear()
    triton._obstacle.cache_clear()


def test_one_line_per_kind_of_device():
    lines = backends()
    assert [line.split(":")[0] for line in lines] == ["cpu", "cuda"]
    assert not any("\n" in line for line in lines)


def test_says_why_a_backend_is_off(monkeypatch):
    monkeypatch.setenv("SACCADE_NATIVE", "0")
    monkeypatch.setenv("SACCADE_TRITON", "0")
    assert backends() == [
        "cpu: plain PyTorch (SACCADE_NATIVE=0)",
        "cuda: plain PyTorch (SACCADE_TRITON=0)",
    ]


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_says_which_kernels_run():
    assert backends()[0].startswith(f"cpu: C++ kernels, {native.instruction_set()} (")
