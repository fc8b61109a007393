from torch import nn
from torch.nn.utils import parametrize

from saccade.layers.bare import bare


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
