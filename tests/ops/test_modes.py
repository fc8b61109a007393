import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops.modes import counting, for_onnx, transformed


def test_knows_when_it_is_transformed():
    answers = []
    torch.vmap(lambda x: (answers.append(transformed()), x)[1])(torch.zeros(2))
    with forward_ad.dual_level():
        answers.append(transformed())
    assert answers == [True, True]
    assert not transformed()


def test_knows_when_flops_are_counted():
    assert not counting()
    with FlopCounterMode(display=False):
        assert counting()
    assert not counting()


def test_no_graph_goes_to_onnx_here():
    assert not for_onnx()
