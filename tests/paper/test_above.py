"""What stands above a backbone is measured, not read off a setting."""

import torch
from torch import nn

from saccade.paper import above
from saccade.recipes import book


def test_the_surgery_is_seen():
    net = above.network(book.find("sasa_retinanet50_all"))
    assert (above.convolutions(net), above.width(net), above.reach(net)) == (0, 256, 7)
    assert above.shared(net) == "yes"
    assert above.strided(net) == "attention, 2x2 mean, stride 2"
    net.pyramid.coarser[0] = nn.Conv2d(256, 256, 3, stride=2)
    assert above.strided(net) == "Conv2d"
    assert above.convolutions(net) == 1


def test_another_way_to_draw_is_seen():
    net = above.network(book.find("linglo_b0_semantic_fpn"))
    assert above.initialisation(net) == "Xavier"
    with torch.no_grad():
        net.branch.classify.weight.mul_(0.1)
    assert above.initialisation(net).startswith("another: std")
