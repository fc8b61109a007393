import pytest
import torch
from torch import nn

from saccade.bench.peer import Peer, Shape, Work, count, on_meta, tensors_with_gradients


def test_shapes_are_read():
    assert Shape.read("4,56,64,8") == (4, 56, 56, 64, 8)
    assert Shape.read("1, 5x7, 12, 3") == (1, 5, 7, 12, 3)
    assert str(Shape(4, 56, 40, 64, 8)) == "4 x 56 x 40 x 64, 8 heads"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4,56", "a shape is batch,side,channels,heads such as 4,56,64,8"),
        ("4,a,64,8", "got '4,a,64,8'"),
        ("4,5x6x7,64,8", "a shape is batch,side,channels,heads"),
        ("4,56,64,8,9", "a shape is batch,side,channels,heads"),
        ("4,0,64,8", "made of positive numbers"),
        ("4,56,63,8", "heads must divide the channels, got 63 channels and 8 heads"),
    ],
)
def test_other_texts_are_refused(text, says):
    with pytest.raises(ValueError, match=says):
        Shape.read(text)


def test_work_is_counted_by_formulas():
    linear, x = nn.Linear(8, 16), torch.ones(10, 8)
    forward = 2 * 10 * 8 * 16
    moved = 4 * (10 * 8 + 10 * 16 + 16 * 8 + 16)
    assert count(linear, (x,), train=False) == (forward, moved)
    assert count(linear, (x,), train=True) == (3 * forward, 2 * moved + 4 * (16 * 8 + 16))
    assert Peer(linear, (x,), Work(1, 2)).work_of() == (1, 2)
    x.requires_grad_()
    assert [t.shape for t in tensors_with_gradients(linear, (x, None))] == [(10, 8), (16, 8), (16,)]


def test_stand_ins_have_no_data():
    x, nothing = on_meta((torch.ones(2, requires_grad=True), None))
    assert x.device.type == "meta"
    assert x.requires_grad
    assert nothing is None


def test_a_call_runs_forward_or_gives_every_gradient():
    linear, x = nn.Linear(3, 2), torch.ones(4, 3, requires_grad=True)
    peer = Peer(linear, (x,))
    y = peer.call()()
    assert torch.equal(y, linear(x))
    assert not y.requires_grad
    gradients = peer.call(train=True)()
    assert [g.shape for g in gradients] == [(4, 3), (2, 3), (2,)]
    assert linear.weight.grad is None
