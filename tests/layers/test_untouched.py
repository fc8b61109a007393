import copy
import subprocess
import sys

import pytest
import torch
from torch import fx, nn
from torch.nn.modules import module as anywhere
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

from saccade.layers.block import FeedForward
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.untouched import applied, pointwise, readable, untouched

X = torch.ones(2, 3)  # what the layers would be called with


def test_a_layer_is_untouched_until_somebody_touches_it():
    linear = nn.Linear(3, 3)
    assert untouched(X, linear)
    assert untouched(X, linear, None)
    hook = linear.register_forward_hook(lambda *_: None)
    assert not untouched(X, linear)
    assert not untouched(X, nn.Linear(3, 3), linear)
    hook.remove()
    before = linear.register_forward_pre_hook(lambda *_: None)
    assert not untouched(X, linear)
    before.remove()
    assert untouched(X, linear)
    parametrize.register_parametrization(linear, "weight", nn.Tanh())
    assert not untouched(X, linear)


def test_a_kind_of_its_own_is_called():
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    assert not untouched(X, Doubled(3, 3))
    assert not untouched(X, nn.Sequential(nn.Linear(3, 3)))


def test_a_class_is_readable_until_its_forward_is_patched(monkeypatch):
    @readable
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.second(self.first(x))

    pair = Pair()
    assert untouched(X, pair)
    hook = pair.second.register_forward_hook(lambda *_: None)
    assert not untouched(X, pair)  # what is inside counts
    hook.remove()
    monkeypatch.setattr(Pair, "forward", lambda self, x: x)
    assert not untouched(X, pair)
    monkeypatch.undo()
    assert untouched(X, pair)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert not untouched(X, nn.Linear(3, 3))


def test_pruned_and_normed_weights_are_called():
    linear = nn.Linear(3, 3)
    prune.l1_unstructured(linear, "weight", 0.5)
    assert not untouched(X, linear)
    assert not untouched(X, weight_norm(nn.Linear(3, 3)))


def test_layers_apart_from_their_map_are_called():
    linear = nn.Linear(3, 3)
    assert not untouched(X.double(), linear)
    assert not untouched(X, linear.to("meta"))
    assert untouched(X.to("meta"), linear)
    linear = nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert untouched(X.bfloat16(), linear)  # torch casts them anyway


def test_counting_flops_touches_nothing():
    linear = nn.Linear(3, 3)
    with FlopCounterMode(display=False):
        assert untouched(X, linear)


def test_a_symbolic_map_is_for_modules(untyped):
    traced = fx.symbolic_trace(nn.Sequential(_Applies()))
    assert "0.linear" in {str(node.target) for node in traced.graph.nodes}


class _Applies(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return applied(self.linear, x)


def test_a_hook_of_an_applied_layer_is_called():
    linear, seen = nn.Linear(3, 4), []
    x = torch.randn(2, 10, 10, 3)
    want = linear(x)
    torch.testing.assert_close(applied(linear, x), want)
    linear.register_forward_hook(lambda *_: seen.append(1))
    assert torch.equal(applied(linear, x), want)
    assert seen


@pytest.mark.parametrize(
    "hook", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]
)
def test_every_kind_of_hook_counts(hook):
    linear = nn.Linear(3, 3)
    getattr(linear, f"register_{hook}")(lambda *_: None)
    assert not untouched(X, linear)
    other = nn.Linear(3, 3)
    handle = getattr(anywhere, f"register_module_{hook}")(lambda *_: None)
    try:
        assert not untouched(X, other)
    finally:
        handle.remove()
    assert untouched(X, other)


def test_a_patched_forward_counts():
    linear = nn.Linear(3, 3)
    linear.forward = lambda x: x
    assert not untouched(X, linear)


def test_a_patched_way_of_convolving_counts(monkeypatch):
    """`nn.Conv2d.forward` goes through `_conv_forward`, which others replace alone."""
    conv, other, image = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), torch.ones(1, 3, 2, 2)
    assert untouched(image, conv)
    conv._conv_forward = lambda *_: image
    assert not untouched(image, conv)
    assert untouched(image, other)
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda *_: image)
    assert not untouched(image, other)


def test_parameters_of_their_own_kind_count():
    class Coded(torch.Tensor):
        pass

    linear = nn.Linear(3, 3)
    linear.weight = nn.Parameter(linear.weight.data.as_subclass(Coded))
    assert not untouched(X, linear)


def test_what_a_pointwise_convolution_is():
    assert pointwise(nn.Conv2d(3, 4, 1, bias=False))
    assert not pointwise(None)
    assert not pointwise(nn.Linear(3, 4))
    for other in ({"bias": True}, {"stride": 2}, {"padding": 1}, {"groups": 3}):
        assert not pointwise(nn.Conv2d(3, 6, 1, **{"bias": False, **other}))
    assert not pointwise(nn.Conv2d(3, 4, 3, bias=False))


# -- what a stranger may do to a part, and what must come of it -----------------------------------


def by_calls(position, x):
    y = sum(branch(x) for branch in position.branches)
    return x + y if position.skip else y


@pytest.mark.parametrize(
    "change", [{"padding_mode": "circular"}, {"dilation": (2, 2), "padding": (2, 2)}]
)
def test_a_convolution_with_other_attributes_is_called(change):
    position, x = RPCPE(16), torch.randn(2, 16, 8, 8)
    for branch in position.branches:
        for name, value in change.items():
            setattr(branch.conv, name, value)
        if "padding_mode" in change:
            branch.conv._reversed_padding_repeated_twice = [1, 1, 1, 1]
    torch.testing.assert_close(position(x), by_calls(position, x))
    ffn = FeedForward(8, 16, position)
    z = torch.randn(1, 8, 8, 8)
    wide = position(ffn.widen(z).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(ffn(z), ffn.narrow(nn.functional.gelu(wide)))


def test_norms_that_learn_alone_gather_statistics():
    position, x = RPCPE(16, norm=True).eval(), torch.randn(2, 16, 8, 8)
    for module in position.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    expected = by_calls(copy.deepcopy(position), x)
    torch.testing.assert_close(position(x), expected)
    assert position.branches[0].norm.num_batches_tracked == 1


def test_layers_of_other_widths_are_called(untyped):
    layer, x = KeyOnlyAttention(32, 4), torch.randn(1, 64, 32)
    layer.key, layer.value, layer.gate = nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(16, 16)
    layer.saliency, layer.mix = nn.Linear(16, 4, bias=False), nn.Linear(16, 32)
    y = layer(x)
    layer.key.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(y, layer(x))
    local = StandAloneAttention(64, heads=8, position="none")
    local.query, local.key = (nn.Conv2d(64, 16, 1, bias=False) for _ in range(2))
    image = torch.randn(1, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="k is B C H W"):
        local(image)


def test_a_forward_patched_after_compiling_counts():
    layer, x = KeyOnlyAttention(32, 2), torch.randn(1, 400, 32)
    compiled = torch.compile(layer, backend="eager")
    compiled(x)
    forward = layer.key.forward
    layer.key.forward = lambda z: forward(z) * 2
    torch.testing.assert_close(compiled(x), layer(x))


def test_patches_of_all_modules_count(monkeypatch):
    layer, x, seen = KeyOnlyAttention(32, 2), torch.randn(1, 400, 32), []
    call = nn.Module.__call__

    def recorded(module, *args, **kwargs):
        seen.append(module)
        return call(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", recorded)
    layer(x)
    assert layer.saliency in seen


@pytest.mark.slow
def test_a_class_patched_before_saccade_counts():
    code = """
import torch
from torch import nn
old = nn.Linear.forward
nn.Linear.forward = lambda self, x: old(self, x) * 2
from saccade.layers.linglo import KeyOnlyAttention
layer, x = KeyOnlyAttention(32, 4), torch.randn(1, 64, 32)
y = layer(x)
layer.key.register_forward_hook(lambda *_: None)
torch.testing.assert_close(layer(x), y)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_layers_are_read():
    """Else all of the above would hold for want of fused operators."""
    position = RPCPE(16).eval()
    assert untouched(torch.randn(1, 16, 8, 8), position)
    assert position.one(torch.randn(1, 16, 8, 8)) is not None
    assert KeyOnlyAttention(16, 2).letters(torch.randn(1, 9, 16)) is not None
    assert FeedForward(8, 16, position).letters(torch.randn(1, 8, 8, 8)) is not None
