"""What the texts say that networks are made of: the measures notice a network that is not."""

import copy

import pytest
import torch
from torch import nn

from saccade.layers.block import Block
from saccade.layers.position import RPCPE
from saccade.layers.sasa_stem import AttentionStem, Mixture
from saccade.models import zoo
from saccade.paper.structure import MEASURES


def built(name, **options):
    with torch.device("meta"):
        return zoo.build(name, **options)


class NormLast(Block):
    """norm(x + mix(x)), as the first transformers had it."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = self.mix_norm(x + self.mix(x))
        return self.ffn_norm(x + self.ffn(x)).permute(0, 3, 1, 2)


def no_norm_after(net):
    net.backbone.stages[1].down[0].norm = nn.Identity()


def norms_last(net):
    for block in (m for m in net.modules() if isinstance(m, Block)):
        block.__class__ = NormLast


def relu(net):
    net.backbone.stages[0].blocks[0].ffn.act = nn.ReLU()


def narrow(net):
    for block in (m for m in net.modules() if hasattr(m, "ffn")):
        block.ffn.widen = nn.Linear(block.ffn.widen.in_features, block.ffn.widen.in_features)


def long_queries(net):
    net.backbone.stages[1].blocks[0].mix.normalize = False


def one_table(net):
    mix = net.backbone.stages[0].blocks[0].mix
    mix.rpe = nn.Parameter(mix.rpe[..., :1])


def queries_first(net):
    stages = net.backbone.stages
    stages[2].blocks[0], stages[2].blocks[-1] = stages[2].blocks[-1], stages[2].blocks[0]


def wider_skip(net):
    for stage in net.backbone.stages[1:]:
        stage.down.skip.kernel_size = (2, 2)


def no_last_norm(net):
    net.backbone.norm = nn.BatchNorm2d(net.backbone.widths[-1])


def a_head_less(net):
    for m in net.modules():
        if hasattr(m, "heads"):
            m.heads = 2


def small_stem(net):
    net.backbone.stem = AttentionStem(3, net.backbone.stem.query.out_channels, side=2)


BROKEN = {
    "branches of RP-CPE": ("linglo_nano", {"position": "r-cpe"}, None, 1),
    "skip beside the branches": ("linglo_nano", {"position": "p-cpe"}, None, "no"),
    "branches are normalised": ("linglo_nano", {"branch_norm": False}, None, "no"),
    "attention": ("linglo_nano", {"mixer": "dot"}, None, "dot-product"),
    "kind of down-sampling": ("linglo_nano", {"down": "patch"}, None, "patch embeddings"),
    "stages of convolution blocks with SE": ("linglo_nano", {"layout": "CCHH"}, None, "1, 2"),
    "positions": ("linglo_nano", {}, None, "RP-CPE"),
    "norm where the size changes": ("linglo_nano", {}, no_norm_after, None),
    "activation": ("linglo_nano", {}, relu, None),
    "norm before attention and FFN": ("linglo_nano", {}, norms_last, "no"),
    "expansion": ("qna_nano", {}, narrow, 1),
    "queries are unit vectors": ("qna_nano", {}, long_queries, "no"),
    "position biases of their own": ("qna_nano", {}, one_table, "shared"),
    "first block of stage 3": ("qna_t", {}, queries_first, "QnA"),
    "skip of down-sampling": ("qna_nano", {}, wider_skip, "2x2 conv, stride 2"),
    "before the pooling": ("qna_nano", {}, no_last_norm, "another"),
    "attention's k": ("sasa_resnet50_k5", {}, None, 5),
    "attention's heads": ("sasa_resnet26", {}, a_head_less, 2),
    "places outside the map take": ("sasa_resnet26", {"border": "zero"}, None, "a share"),
    "stem's window": ("sasa_resnet26", {}, small_stem, "2x2"),
    "stem's heads": ("sasa_resnet26", {}, a_head_less, 2),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_measure_notices(what):
    """Beside the nets of the papers, of which tests/paper/test_claims.py has the values."""
    name, options, damage, expected = BROKEN[what]
    net = copy.deepcopy(built(name, **options))
    if damage is not None:
        damage(net)
    try:
        measured = MEASURES[what](net)
    except ValueError:  # not all layers are alike
        measured = None
    assert measured == expected


def test_what_is_deployed_is_counted_after_fusing(monkeypatch):
    net = built("linglo_nano")
    assert MEASURES["branches of RP-CPE, deployed"](net) == 1
    monkeypatch.setattr(RPCPE, "fuse", lambda self: self)
    assert MEASURES["branches of RP-CPE, deployed"](net) == 4


def test_shares_that_are_not_convex(monkeypatch):
    net, what = built("sasa_resnet26"), "mixtures are shared by the stem's heads"
    assert MEASURES[what](net) == "yes"
    monkeypatch.setattr(
        Mixture, "shares", lambda self: ((self.row[:, None] + self.col) @ self.nu.mT).sigmoid()
    )
    assert MEASURES[what](net) == "no"
