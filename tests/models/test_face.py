import timm
import torch
from torch import nn

import saccade
from saccade.models.face import Face, answering


class Attending(nn.Module):
    """A network that has something of its own under a name of ours."""

    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(2, 2)


def test_names_that_a_network_has_stay_its_own():
    net = answering(Attending())
    assert type(net) is Attending
    assert isinstance(net.attention, nn.Linear)


def test_a_network_of_timms_has_the_same_class_each_time():
    nets = [answering(timm.create_model("resnet18", num_classes=2)) for _ in range(2)]
    assert type(nets[0]) is type(nets[1])
    assert isinstance(nets[0], Face)
    assert torch.jit.trace(nets[0].eval(), torch.zeros(1, 3, 64, 64)) is not None
    assert torch.jit.script(nets[0]) is not None


def test_our_own_are_not_changed():
    net = saccade.build("linglo_nano")
    assert answering(net) is net
    assert type(net).__name__ == "Classifier"
