"""What every test may use. Shape checking (jaxtyping + beartype) is on for the whole package."""

import os
import random
import sys
from pathlib import Path

import beartype._check.code.codemain as beartype_code
import jaxtyping
import pytest
import torch

from tests import type_checks
from tests.fast import is_fast

HERE = Path(__file__).resolve().parent
BESIDE = HERE.parents[1] / "shared"

type_checks.install()

# Bytecode is written even where the environment says not to: a run has two workers and about fifty
# programs of its own, and each would compile every module anew, with its shape checks.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker whole files, and all of Triton's: two processes serve every test of them."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "triton" if file.startswith("tests/ops/triton/") else file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


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
