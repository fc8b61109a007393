"""Prepared calls read memory by its address: no size of a map or a weight is taken on trust.

Whatever has another size than the layer was built for is computed as its modules compute it, or it
is refused as they refuse it.
"""

import pytest
import torch
from timm.layers import LayerNorm2d
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from saccade.layers.block import Block, FeedForward
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.layers.qna import LearnedQueryAttention, QnADown, QnAFeedForward
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem, ConvStem
from saccade.layers.stem import ConvDown, Patches
from saccade.layers.window import WindowAttention
from saccade.models.backbone import Stage
from saccade.models.sasa import Bottleneck
from saccade.ops.native.linear import pays

pytestmark = [
    pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here"),
    pytest.mark.usefixtures("untyped"),  # what counts is what a user's process does
]


def bottleneck(dim, stride, **options):
    attention = StandAloneAttention(8, heads=2, window=3, stride=stride, **options)
    return Bottleneck(dim, attention, 8, 32, stride, 0.0)


# what it is: the channels it reads, and how it is made
LAYERS = {
    "key_only": (16, lambda: Block(16, KeyOnlyAttention(16, 2), FeedForward(16, 32))),
    "position": (16, lambda: Block(16, KeyOnlyAttention(16, 2), FeedForward(16, 32, RPCPE(32, 2)))),
    "learned": (16, lambda: Block(16, LearnedQueryAttention(16, 2), QnAFeedForward(16))),
    "window": (16, lambda: Block(16, WindowAttention(16, 2, 4), QnAFeedForward(16))),
    "learned_down": (16, lambda: QnADown(16, 2, 3, 2)),
    "stand_alone": (32, lambda: bottleneck(32, 1, border="mask")),
    "stand_alone_zero": (32, lambda: bottleneck(32, 1, border="zero", shared=False)),
    "stand_alone_down": (16, lambda: bottleneck(16, 2)),
    "attention_stem": (3, lambda: AttentionStem(3, 64)),
    "conv_stem": (3, lambda: ConvStem(3, 16, 2)),
    "conv_down": (16, lambda: ConvDown(16, 32, 3, 2)),
    "patches": (3, lambda: Patches(3, 32, 4, 4)),
    "norm": (16, lambda: Stage(nn.Identity(), [], LayerNorm2d(16))),
}
layers = pytest.mark.parametrize("name", LAYERS)


def built(name):
    torch.manual_seed(0)
    layer = LAYERS[name][1]().eval()
    with torch.no_grad():
        for t in (*layer.parameters(), *layer.buffers()):
            if t.is_floating_point():
                t.add_(0.2 * torch.rand_like(t))
    return layer


def image(channels, height=8, width=12):
    x = torch.randn(2, channels, height, width)
    return x.contiguous(memory_format=torch.channels_last)


def outcome(layer, x):
    try:
        with torch.inference_mode():
            return layer(x)
    except (ValueError, RuntimeError, IndexError) as error:
        return error


def complaint(layer, x):
    """What is wrong with the layer's answer, in two calls; None if nothing."""
    answers = [outcome(layer, x) for _ in range(2)]
    hook = register_module_forward_hook(lambda *_: None)
    try:
        expected = outcome(layer, x)
    finally:
        hook.remove()
    for y in answers:
        if isinstance(y, Exception):
            continue  # all of them are sentences; what may be refused, other tests say
        if isinstance(expected, Exception):
            return f"numbers, where modules raise {expected!r:.80}"
        if y.shape != expected.shape:
            return f"shape {tuple(y.shape)}, not {tuple(expected.shape)}"
        if y.numel() and not (y - expected).abs().max() < 2e-4 * expected.abs().max():
            return "other numbers"
    return None


@layers
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_maps_of_other_widths_are_refused(name, first):
    dim = LAYERS[name][0]
    for channels in {1, 2, dim - 1, dim + 1, 2 * dim, 8 * dim} - {0, dim}:
        layer = built(name)
        if not first:
            outcome(layer, image(dim))
        for size in ((8, 12), (40, 40)):
            y = outcome(layer, image(channels, *size))
            assert isinstance(y, ValueError | RuntimeError), (channels, size)


def in_other_sizes(t):
    for axis, n in enumerate(t.shape[:2]):
        for count in {n - 1, 2 * n} - {0}:
            yield f"{count} of {n} along {axis}", t.index_select(axis, torch.arange(count) % n)
    if t.ndim == 4:
        yield "two columns", t[..., :1].expand(-1, -1, -1, 2)


@layers
def test_weights_of_other_sizes_are_computed_with_or_refused(name):
    wrong, layer, x = {}, built(name), image(LAYERS[name][0], 4, 8)
    for key, t in layer.state_dict().items():
        where, _, leaf = key.rpartition(".")
        owner = layer.get_submodule(where)
        place = owner._parameters if leaf in owner._parameters else owner._buffers
        for what, other in in_other_sizes(t) if t.is_floating_point() else ():
            assert not isinstance(outcome(layer, x), Exception)  # prepared with the right one
            before, other = place[leaf], other.clone()
            place[leaf] = nn.Parameter(other) if place is owner._parameters else other
            wrong[key, what] = complaint(layer, x)
            place[leaf] = before
    assert wrong
    assert not {where: what for where, what in wrong.items() if what}


@pytest.mark.parametrize("change", ["stride", "identity", "dropped"])
def test_sums_of_unequal_maps_are_refused(change):
    layer, x = built("stand_alone_down"), image(16)
    outcome(layer, x)
    if change == "stride":
        layer.shortcut[0].stride = (1, 1)
    elif change == "identity":
        layer.shortcut = nn.Identity()
    else:
        layer.mix.stride = 1
    assert isinstance(outcome(layer, x), RuntimeError)
