import pytest
import torch
from torch import nn
from torch.nn.modules import module as anywhere
from torch.nn.utils import parametrize

from saccade.layers.bare import applied, bare, pointwise


def test_a_layer_is_bare_until_somebody_touches_it():
    linear = nn.Linear(3, 3)
    assert bare(linear, nn.Linear)
    assert not bare(linear, nn.GELU)
    hook = linear.register_forward_hook(lambda *_: None)
    assert not bare(linear, nn.Linear)
    hook.remove()
    before = linear.register_forward_pre_hook(lambda *_: None)
    assert not bare(linear, nn.Linear)
    before.remove()
    assert bare(linear, nn.Linear)
    parametrize.register_parametrization(linear, "weight", nn.Tanh())
    assert not bare(linear, nn.Linear)


def test_a_kind_of_its_own_is_not_bare():
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    assert not bare(Doubled(3, 3), nn.Linear)


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
    assert not bare(linear, nn.Linear)
    other = nn.Linear(3, 3)
    handle = getattr(anywhere, f"register_module_{hook}")(lambda *_: None)
    try:
        assert not bare(other, nn.Linear)
    finally:
        handle.remove()
    assert bare(other, nn.Linear)


def test_a_patched_forward_counts():
    linear = nn.Linear(3, 3)
    linear.forward = lambda x: x
    assert not bare(linear, nn.Linear)


def test_parameters_of_their_own_kind_count():
    class Coded(torch.Tensor):
        pass

    linear = nn.Linear(3, 3)
    linear.weight = nn.Parameter(linear.weight.data.as_subclass(Coded))
    assert not bare(linear, nn.Linear)


def test_what_a_pointwise_convolution_is():
    assert pointwise(nn.Conv2d(3, 4, 1, bias=False))
    assert not pointwise(None)
    assert not pointwise(nn.Linear(3, 4))
    for other in ({"bias": True}, {"stride": 2}, {"padding": 1}, {"groups": 3}):
        assert not pointwise(nn.Conv2d(3, 6, 1, **{"bias": False, **other}))
    assert not pointwise(nn.Conv2d(3, 4, 3, bias=False))
