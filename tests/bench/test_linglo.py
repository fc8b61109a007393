import pytest
import torch

from saccade.bench import linglo
from saccade.bench.peer import Peer, Shape


@pytest.mark.parametrize("layer", [False, True], ids=["operator", "layer"])
def test_the_forms_compute_the_same(layer):
    forms = linglo.peers(Shape(2, 5, 7, 8, 2), layer=layer)
    of = forms["linglo"]
    for name in ("tokenwise", "folded", "collapsed"):
        peer = forms[name]
        if layer:
            peer.f.load_state_dict(of.f.state_dict())
        else:
            peer = Peer(peer.f, of.inputs)
        torch.testing.assert_close(peer.call()(), of.call()(), atol=1e-5, rtol=1e-4)


def test_each_is_measured_by_its_own_products():
    forms = linglo.peers(Shape(1, 32, 32, 8, 2))
    work = {name: peer.work_of().flops for name, peer in forms.items()}
    product = 2 * 32 * 32 * 8 * 8
    assert work["product"] == product
    assert 4 * product < work["tokenwise"] < 6 * product
    assert work["collapsed"] < work["folded"] < work["tokenwise"]
    assert work["global"] > work["tokenwise"]
