"""The stem's attention: the form for graphs is the same function as the equation's steps."""

import pytest
import torch
from torch import nn

from saccade import export
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem
from saccade.ops import sasa_block

SIZES = [(1, 1), (3, 5), (8, 4), (9, 14)]


def example(size, positions):
    torch.manual_seed(0)
    shapes = [(2, 3, *size), (16, 3), (16, 3), (16, 16, 3)]
    shapes += [(7, 2), (7, 2)] if positions else []
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    return tensors if positions else [*tensors, None, None]


def outcome(call, tensors):
    """What comes out, and the gradients of a weighted sum of it."""
    y = call(*tensors)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    inputs = [t for t in tensors if t is not None]
    return y, *torch.autograd.grad((y * weight).sum(), inputs)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_folded_equals_composed_gradients_included(size, positions, mask):
    tensors = example(size, positions)
    got, want = (
        outcome(lambda *t, form=form: sasa_block.attend(*t, 4, mask, backend=form), tensors)
        for form in ("folded", "composed")
    )
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_maximum_of_folded_blocks(size, mask):
    tensors = [*example(size, True), *torch.randn(2, 16, dtype=torch.float64)]
    got, want = (
        sasa_block.maximum_of_blocks(*tensors, 4, mask, backend=form)
        for form in ("folded", "composed")
    )
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


class Stem(nn.Module):
    def __init__(self, border):
        super().__init__()
        self.stem = AttentionStem(3, 16, heads=2, border=border)
        self.attention = StandAloneAttention(16, heads=2, window=5, border=border)

    def forward(self, x):
        return self.attention(self.stem(x)).mean((2, 3))


@pytest.mark.usefixtures("untyped")  # exporters trace with symbols
@pytest.mark.parametrize("border", [pytest.param("zero", marks=pytest.mark.slow), "mask"])
def test_a_graph_multiplies_matrices_at_any_size(border, tmp_path):
    """No window by window: a graph has few operators, and none of the slow general ones."""
    import onnx

    torch.manual_seed(0)
    raw = export.Raw(Stem(border).eval())
    export.to_onnx(raw, tmp_path / "net.onnx", {})
    kinds = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds.count("MatMul") < 20
    assert kinds.count("Einsum") <= 6  # of weights
    assert export.apart(raw, export.runner(tmp_path / "net.onnx")) < 1e-5
