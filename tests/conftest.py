"""What every test may use. Shape checking (jaxtyping + beartype) is on for the whole package."""

from pathlib import Path

import jaxtyping
import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"

torch.set_num_threads(1)  # the maps are small, and the machine may be shared


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def untyped():
    """Shape checks off: symbolic tracers pass stand-ins that are no tensors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def shared():
    """The folder of golden values and small data sets that may lie beside the project."""
    if not SHARED.is_dir():
        pytest.skip("no folder ../shared beside the project: golden values and data are not here")
    return SHARED
