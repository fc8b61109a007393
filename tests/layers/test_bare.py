import torch
from torch import nn
from torch.nn.utils import parametrize

from saccade.layers.bare import applied, bare


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
