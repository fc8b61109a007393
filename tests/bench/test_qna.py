import pytest
import torch

from saccade.bench import qna
from saccade.bench.peer import Shape, count, on_meta
from saccade.layers.window import WindowAttention
from saccade.ops.qna import aggregate


@pytest.mark.parametrize("layer", [False, True], ids=["operator", "layer"])
@pytest.mark.parametrize(("window", "queries", "stride"), [(3, 2, 1), (5, 1, 2)])
def test_the_peers_compute_the_same(layer, window, queries, stride):
    forms = qna.peers(
        Shape(2, 9, 13, 8, 2), layer=layer, window=window, queries=queries, stride=stride
    )
    y = forms["qna"].call()()
    for name in ("walked", "unrolled", "convolved"):
        torch.testing.assert_close(forms[name].call()(), y, atol=1e-5, rtol=1e-4)
    assert forms["conv"].call()().shape[2:] == y.shape[1:3]


def test_what_has_no_stride_is_left_out():
    forms = qna.peers(Shape(1, 9, 13, 8, 2), stride=2)
    left_out = {name for name, peer in forms.items() if peer.absent}
    assert left_out == {"window", "global", "sasa", "unfold"}


def test_what_sasa_refuses_is_left_out():
    forms = qna.peers(Shape(1, 9, 13, 6, 2), window=3)
    assert "even head width" in forms["sasa"].absent
    assert not forms["window"].absent


def test_work_is_that_of_the_registered_formula():
    forms = qna.peers(Shape(2, 9, 13, 8, 2), window=5)
    inputs = on_meta(forms["qna"].inputs)
    assert forms["walked"].work == count(lambda *t: aggregate(*t, 1, 2), inputs, train=False)
    assert forms["walked"].work.flops > 0


def test_attention_inside_windows_is_the_layers():
    layer = WindowAttention(8, 2, 3)  # its table of positions starts at zero
    x = torch.randn(2, 6, 9, 8)
    q, k, v = layer.qkv(x).chunk(3, -1)
    y = layer.mix(qna.inside_windows(q, k, v, heads=2, side=3))
    torch.testing.assert_close(y, layer(x), atol=1e-5, rtol=1e-4)
