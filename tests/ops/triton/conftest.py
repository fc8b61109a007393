"""Processes for the kernels: Triton decides when it is imported whether it compiles or interprets.

`interpreter(f, *args)` runs f where kernels are interpreted, on CPU tensors. `compiler(f, *args)`
runs f where they are compiled for a GPU that need not be there.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest
import torch


@contextmanager
def process(**environment):
    pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tried")
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            pool.submit(int).result()  # the process starts with this environment
            os.environ.clear()
            os.environ.update(before)
            yield lambda f, *args, **kwargs: pool.submit(f, *args, **kwargs).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def interpreter():
    with process(TRITON_INTERPRET="1", OMP_NUM_THREADS="1") as run:
        yield run


@pytest.fixture(scope="session")
def compiler(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton"))
    with process(TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache, OMP_NUM_THREADS="1") as run:
        yield run
