"""Tiles and tuning, and what the package says of the machine."""

import pytest
import torch

from saccade.ops import triton
from saccade.ops.triton import TILE, block, power_of_two


@pytest.fixture
def asked_again():
    """The answer is kept; these tests change what it depends on."""
    triton._obstacle.cache_clear()
    yield
    triton._obstacle.cache_clear()


@pytest.mark.usefixtures("asked_again")
def test_where_gives_the_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not triton.ready()
    assert triton.where().startswith("plain PyTorch (")


@pytest.mark.usefixtures("asked_again")
def test_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("SACCADE_TRITON", "0")
    assert triton.where() == "plain PyTorch (SACCADE_TRITON=0)"


@pytest.mark.usefixtures("asked_again")
@pytest.mark.parametrize(("capability", "usable"), [((7, 5), False), ((8, 0), True)])
def test_needs_ampere(monkeypatch, capability, usable):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert triton.ready() == usable


def test_tiles_have_one_size():
    for width in range(1, 129):
        D, pixels = power_of_two(width), block(width)
        assert width <= D < 2 * width
        assert pixels == power_of_two(pixels)
        assert D * pixels <= TILE
        assert D * pixels == TILE or pixels == 128


def check_choice():
    from triton.runtime.autotuner import Autotuner

    from saccade.ops.triton.sasa_kernels import forward
    from saccade.ops.triton.tune import CHOICES

    assert isinstance(forward, Autotuner)
    forward.nargs = {}
    assert [c.num_warps for c in forward.prune_configs({})] == [warps for warps, _ in CHOICES]
    torch.use_deterministic_algorithms(True)
    try:
        assert [c.num_warps for c in forward.prune_configs({})] == [CHOICES[0][0]]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_nothing_is_measured_where_determinism_is_asked_for(compiler):
    compiler(check_choice)
