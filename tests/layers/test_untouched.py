import pytest
import torch
from torch import fx, nn
from torch.nn.modules import module as anywhere
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

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
