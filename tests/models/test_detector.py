"""What all detectors share: depths for layer decay, and whose word is whose."""

import pytest
from torch import nn

from saccade.models import retinanet
from saccade.models.detector import DenseNetwork, split_arguments


def test_whose_word_is_whose():
    class Asked:
        dim, heads, score = 32, "conv", 0.1

    names = ("dim", "heads")
    assert split_arguments(names, None, {"dim": 8, "window": 5}) == ({"dim": 8}, {"window": 5})
    assert split_arguments(names, Asked(), {"heads": 4}) == (
        {"dim": 32, "heads": "conv"},
        {"heads": 4},
    )
    assert split_arguments(names, {"dim": 3}, {"dim": 4}) == ({"dim": 3}, {"dim": 4})


def test_depths_of_a_backbone_coarse_and_fine():
    net = retinanet.build("qna_nano", 2, dim=32, depth=0)
    assert net.group_matcher(coarse=True)["blocks"] == r"^backbone\.body\.stages\.(\d+)"
    assert len(net.group_matcher()["blocks"]) == 3


def test_a_backbone_that_tells_no_depth_is_refused():
    class Flat(DenseNetwork):
        body = "backbone.body."

        def __init__(self):
            super().__init__()
            self.backbone = nn.ModuleDict({"body": nn.Linear(2, 2)})

        def backbone_from(self, source):
            raise AssertionError("not asked for")

        def set_grad_checkpointing(self, enable=True):
            raise AssertionError("not asked for")

    with pytest.raises(ValueError, match=r"set optim\.layer_decay=null"):
        Flat().group_matcher()
