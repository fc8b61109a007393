"""A classifier's head in the walk of its network: the mean of a map times a matrix."""

import pytest
import torch
from timm.layers import ClassifierHead
from torch import nn

import saccade
from saccade.layers.head import classified, ready_head
from saccade.ops.native.linear import pays
from tests.ops.native.oracle import relative

pytestmark = pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here")


def example():
    torch.manual_seed(0)
    return ClassifierHead(37, 19, pool_type="avg").eval(), torch.randn(3, 5, 7, 37)


@pytest.mark.parametrize("shape", [(1, 7, 7, 37), (100, 2, 3, 37), (3, 1, 1, 37)])
def test_equals_the_equation(shape):
    head, _ = example()
    x = torch.randn(shape)
    with torch.no_grad():
        y = ready_head(x, head)(x).flatten(1)
    want = x.double().mean((1, 2)) @ head.fc.weight.double().mT + head.fc.bias.double()
    assert relative(y, want) <= 1e-5


@pytest.mark.parametrize(
    "options", [{"pool_type": "max"}, {"pool_type": "avgmax"}, {"pool_type": "fast"},
                {"use_conv": True}, {"num_classes": 0}],
)  # fmt: skip
def test_other_heads_are_called(options):
    torch.manual_seed(0)
    head = ClassifierHead(37, **{"num_classes": 19, "pool_type": "avg", **options}).eval()
    x = torch.randn(3, 5, 7, 37)
    with torch.no_grad():
        assert ready_head(x, head) is None
        image = x.permute(0, 3, 1, 2)
        assert torch.equal(classified(image, head), head(image))


def changes():
    def forward_head(net):
        net.forward_head = lambda x, pre_logits=False: net.head(x, pre_logits) + 1

    def forward_features(net):
        net.forward_features = lambda x: 2 * net.backbone.last(x)

    def last(net):
        before = net.backbone.last
        net.backbone.last = lambda x: 2 * before(x)

    def pool(net):
        net.head.global_pool.pool = nn.AdaptiveMaxPool2d(1)

    def drop(net):
        net.head.drop = nn.Dropout(0.9).train()

    def hook(net):
        net.head.fc.register_forward_hook(lambda m, args, y: y + 3)

    def weight(net):
        net.head.fc.weight.data.mul_(1.5)

    def bias(net):
        net.head.fc.bias.data[0] += 4

    def classes(net):
        net.reset_classifier(7)

    def flatten(net):
        net.head.flatten.forward = lambda x: -x

    return [forward_head, forward_features, last, pool, drop, hook, weight, bias, classes, flatten]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize("half", [False, True])
def test_a_change_of_the_head_is_never_overlooked(change, half):
    net, x = saccade.build("linglo_nano", num_classes=10).eval(), torch.randn(2, 3, 64, 64)
    if half:
        net, x = net.bfloat16(), x.bfloat16()
    with torch.no_grad():
        for _ in range(4):
            before = net(x)
        torch.manual_seed(0)
        change(net)
        y = net(x)
        torch.manual_seed(0)
        want = net.forward_head(net.forward_features(x))
        assert y.shape != before.shape or not torch.equal(y, before)
        if change.__name__ != "drop":  # which draws
            assert relative(y.float(), want.double()) <= (2e-2 if half else 1e-5)


def test_logits_are_those_of_the_ways_one_by_one():
    net, x = saccade.build("qna_nano", num_classes=10).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        want = net.forward_head(net.forward_features(x))
        for _ in range(5):
            assert torch.equal(net(x), want)
