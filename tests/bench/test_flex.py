"""Local attention through general masked kernels."""

import pytest
import torch

from saccade.bench.flex import local_attention
from tests.ops.triton.check import compare
from tests.ops.triton.conftest import compiler  # noqa: F401 (a fixture)
from tests.ops.triton.test_sasa import example, plain

SHAPES = [
    {"heads": 2, "d": 8, "H": 9, "W": 6, "window": 5},
    {"heads": 2, "d": 6, "H": 5, "W": 7, "window": 7, "tables": 2, "layout": "nhwc"},
    {"heads": 1, "d": 4, "H": 2, "W": 3, "window": 7, "content": False},
    {"heads": 3, "d": 5, "H": 6, "W": 4, "window": 3, "position": False},
    {"heads": 1, "d": 4, "H": 4, "W": 4, "window": 3, "position": False, "content": False},
]


@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bridge_is_exact(shape, border):
    tensors, g = example(B=2, dtype=torch.float64, **shape)
    heads, window = shape["heads"], shape["window"]
    compare(
        lambda *t: local_attention(*t, heads, window, border, kernel="dense"),
        lambda *t: plain(*t, heads, window, border),
        tensors, g,
    )  # fmt: skip


def check_flex(border):
    tensors, _ = example(heads=2, d=8, H=9, W=6, window=5)
    with torch.no_grad():  # on CPU it has no backward
        y = local_attention(*tensors, 2, 5, border)
    torch.testing.assert_close(y, plain(*tensors, 2, 5, border), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("border", ["zero", "mask"])
def test_flex_attention_computes_the_same(compiler, border):  # noqa: F811
    compiler(check_flex, border)
