"""What every test may use. Shape checking (jaxtyping + beartype) is on for the whole package."""

import random
from pathlib import Path

import beartype._check.code.codemain as beartype_code
import jaxtyping
import pytest
import torch

from tests.fast import is_fast

HERE = Path(__file__).resolve().parent
BESIDE = HERE.parents[1] / "shared"

# beartype looks at one item of a list, drawn by Python's own generator. It shall have another one:
# a run saves the state of Python's, and a resumed run is compared with an unbroken one to the bit.
beartype_code.getrandbits = random.Random(0).getrandbits

torch.set_num_threads(1)  # the maps are small, and the machine may be shared


def pytest_collection_modifyitems(config, items):
    """Mark what is fast, and leave out what needs data sets that are not here."""
    chosen, left_out = [], []
    for item in items:
        if is_fast(item):
            item.add_marker(pytest.mark.fast)
        here = BESIDE.is_dir() or item.get_closest_marker("data") is None
        (chosen if here else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def untyped():
    """Shape checks off: symbolic tracers pass stand-ins that are no tensors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Files:
    """Golden values, which are in the repository, and real data sets, which may lie beside it."""

    def __truediv__(self, name):
        return (HERE if name.split("/")[0] == "golden" else BESIDE) / name


@pytest.fixture
def shared():
    """`shared / "golden" / ...` and, in tests marked `data`, `shared / "data" / ...`."""
    return Files()
