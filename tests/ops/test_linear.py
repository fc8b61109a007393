from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from saccade.ops import linear as ops
from saccade.ops import native


def test_it_is_what_torch_gives():
    x, w, b = torch.randn(4, 9, 9, 6), torch.randn(5, 6), torch.randn(5)
    torch.testing.assert_close(ops.linear(x, w, b), F.linear(x, w, b))
    torch.testing.assert_close(ops.linear(x[0, 0, :2], w), F.linear(x[0, 0, :2], w))


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_who_takes_which_call(monkeypatch):
    fast = replace(ops.LINEAR.kernels["native"], ready=lambda: True)
    monkeypatch.setitem(ops.LINEAR.kernels, "native", fast)
    x, w = torch.randn(4, 9, 9, 6), torch.randn(5, 6)
    assert ops.fuses(x, w)
    assert not ops.fuses(x[:1, :2], w)  # not worth laying out a matrix
    assert not ops.fuses(x.double(), w.double())
    assert not ops.fuses(x.transpose(1, 2), w)
    assert not ops.fuses(x.to("meta"), w.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not ops.fuses(x, w)
    monkeypatch.setitem(ops.LINEAR.kernels, "native", replace(fast, ready=lambda: False))
    assert not ops.fuses(x, w)
