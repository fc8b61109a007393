"""Measure the layers that a recipe builds on a backbone: their initial weights and SASA's surgery.

The backbone is a small one here; pyramid and heads are those of the recipe.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from saccade.engine import make
from saccade.layers.sasa import StandAloneAttention
from saccade.recipes.recipe import Recipe, change

BACKBONE = "linglo_nano"  # drawn at once


def network(recipe: Recipe) -> Any:
    """The recipe's network for two classes, with weights."""
    return make.task(change(recipe, model__name=BACKBONE, model__drop_path=None), ("a", "b")).net


def _new(net: Any, kind: type) -> Iterator[Any]:
    """The modules of a kind that the backbone did not bring."""
    own = set(net.backbone.modules())
    return (m for m in net.modules() if isinstance(m, kind) and m not in own)


def initialisation(net: Any) -> str:
    """Xavier, if every new convolution is drawn so, by the spread of its weights.

    Xavier's are uniform within +-sqrt(6 / (inputs + outputs)), so of a known largest value, and of
    that over sqrt(3) as their standard deviation.
    """
    for conv in _new(net, nn.Conv2d):
        fan = (conv.in_channels + conv.out_channels) * math.prod(conv.kernel_size)
        bound = math.sqrt(6 / fan)
        spread, largest = conv.weight.std().item(), conv.weight.abs().max().item()
        if largest > bound or abs(spread * math.sqrt(3) / bound - 1) > 0.1:
            return f"another: std {spread:.2g}, where Xavier gives {bound / math.sqrt(3):.2g}"
    return "Xavier"


def convolutions(net: Any) -> int:
    """Of more than one pixel, above the backbone."""
    return sum(max(conv.kernel_size) > 1 for conv in _new(net, nn.Conv2d))


def width(net: Any) -> int:
    (width,) = {layer.value.weight.shape[0] for layer in _new(net, StandAloneAttention)}
    return width


def reach(net: Any) -> int:
    """Pixels on a side that change a pixel's output, by their gradient."""
    sides = set()
    for layer in _new(net, StandAloneAttention):
        if layer.stride == 1:
            x = torch.randn(1, layer.value.weight.shape[1], 15, 15, requires_grad=True)
            (gradient,) = torch.autograd.grad(layer(x)[0, :, 7, 7].square().sum(), x)
            rows = gradient[0].abs().amax((0, 2)).nonzero()
            sides.add(int(rows.max() - rows.min()) + 1)
    (side,) = sides
    return side


def heads(net: Any) -> int:
    """Of all attention; channels of one head see nothing of another's."""
    (count,) = {layer.heads for layer in _new(net, StandAloneAttention)}
    return count


@torch.no_grad()
def strided(net: Any) -> str:
    """What stands where RetinaNet's convolutions have a stride: attention and a mean, if it is."""
    for layer in net.pyramid.coarser:
        if not isinstance(layer, StandAloneAttention):
            return type(layer).__name__
        x = torch.randn(1, layer.value.weight.shape[1], 8, 8)
        y, layer.stride = layer(x), 1
        whole, layer.stride = layer(x), 2
        if not torch.allclose(y, F.avg_pool2d(whole, 2), atol=1e-5):
            return "another"
    return "attention, 2x2 mean, stride 2"


@torch.no_grad()
def shared(net: Any) -> str:
    """Whether a head gives the same for the same map on every level."""
    net.eval()
    x = torch.randn(1, net.pyramid.dim, 9, 9)
    outputs = [head([x] * net.pyramid.levels) for head in (net.classify, net.locate)]
    alike = all(torch.equal(y, levels[0]) for levels in outputs for y in levels)
    return "yes" if alike else "no"


def spread_of_values(net: Any) -> float:
    """The standard deviation of W_V in the heads."""
    layers = [m for head in (net.classify, net.locate) for m in head.modules()]
    values = [m.value.weight for m in layers if isinstance(m, StandAloneAttention)]
    return torch.cat([value.flatten() for value in values]).std().item()


def end(net: Any) -> str:
    """The last layers of both heads."""
    kinds = set()
    for head in (net.classify, net.locate):
        layers = head.last if isinstance(head.last, nn.Sequential) else [head.last]
        kinds.add(", ".join(_word(layer) for layer in layers))
    (word,) = kinds
    return word


def _word(layer: Any) -> str:
    if isinstance(layer, StandAloneAttention):
        return "attention"
    return f"{'x'.join(map(str, layer.kernel_size))} convolution"
