import torch
from torch import nn

import saccade
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem
from saccade.paper import count, sasa


def meta(make):
    with torch.device("meta"):
        return make()


def test_products_are_those_of_the_counter():
    """Every convolution, projection and pair, as the operators declare them."""
    shares = 2 * 16 * 16 * 5  # of the stem's mixture, once for all pixels: a thousandth of a digit
    for options, rest in ({}, 0), ({"stem": "attention", "stem_stride": 4}, shares):
        net = meta(lambda options=options: saccade.build("sasa_nano", border="zero", **options))
        assert sasa.flops(net, 32, sasa.PRODUCTS) == count.flops(net, (32, 32)) - rest


def test_pairs_inside_are_those_of_a_masked_border():
    net = meta(lambda: saccade.build("sasa_nano", border="mask"))
    inside = sasa.PRODUCTS._replace(pairs="inside")
    assert sasa.flops(net, 32, inside) == count.flops(net, (32, 32))


def test_taps_inside_the_map():
    conv = meta(lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1))
    every = sasa.PRODUCTS
    assert sasa.flops(conv, 5, every) == 2 * 3 * 4 * 9 * 9
    assert sasa.flops(conv, 5, every._replace(taps="inside")) == 2 * 3 * 4 * (2 + 3 + 2) ** 2


def test_what_else_a_convention_counts():
    layer = meta(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), StandAloneAttention(8, heads=2, window=3))
    )
    plain = sasa.flops(layer, 4, sasa.PRODUCTS)
    weights = 2 * 16 * 9
    assert sasa.flops(layer, 4, sasa.PRODUCTS._replace(softmax=5)) == plain + 5 * weights
    assert sasa.flops(layer, 4, sasa.PRODUCTS._replace(single=True)) == plain + weights
    axes, none = (sasa.PRODUCTS._replace(positions=word) for word in ("axes", "none"))
    assert sasa.flops(layer, 4, axes) == plain - 2 * 8 * 16 * 9 + 2 * 8 * 16 * 3
    assert sasa.flops(layer, 4, none) == plain - 2 * 8 * 16 * 9
    normed = meta(lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
    assert sasa.flops(normed, 4, sasa.BEST) == (4 + 1) * 3 * 16


def test_each_mixture_of_the_stem_is_a_projection_and_a_sum():
    stem = meta(lambda: AttentionStem(3, 8, heads=2))
    four, five = (sasa.flops(stem, 8, sasa.PRODUCTS._replace(mixtures=m)) for m in (4, 5))
    assert five - four == 2 * 8 * (3 + 1) * 64


def test_counting_leaves_the_network_as_it_was():
    net = meta(lambda: saccade.build("sasa_nano").train())
    sasa.flops(net, 32)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())
