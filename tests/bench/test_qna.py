import pytest
import torch

from saccade.bench import qna
from saccade.bench.peer import Shape, count, on_meta
from saccade.layers.window import WindowAttention
from saccade.ops.qna import aggregate


@pytest.mark.parametrize("layer", [False, True], ids=["operator", "layer"])
@pytest.mark.parametrize(("window", "queries", "stride"), [(3, 2, 1), (5, 1, 2)])
def test_the_peers_compute_the_same(layer, window, queries, stride):
    found = qna.peers(
        Shape(2, 9, 13, 8, 2), layer=layer, window=window, queries=queries, stride=stride
    )
    y = found["qna"].call()()
    for name in ("walked", "unrolled", "convolved"):
        torch.testing.assert_close(found[name].call()(), y, atol=1e-5, rtol=1e-4)
    assert found["conv"].call()().shape[2:] == y.shape[1:3]


def test_what_has_no_stride_is_left_out():
    found = qna.peers(Shape(1, 9, 13, 8, 2), stride=2)
    left_out = {name for name, peer in found.items() if peer.absent}
    assert left_out == {"window", "global", "sasa", "unfold"}


def test_what_sasa_refuses_is_left_out():
    found = qna.peers(Shape(1, 9, 13, 6, 2), window=3)
    assert "even head width" in found["sasa"].absent
    assert not found["window"].absent


def test_work_is_that_of_the_registered_formula():
    found = qna.peers(Shape(2, 9, 13, 8, 2), window=5)
    inputs = on_meta(found["qna"].inputs)
    assert found["walked"].work == count(lambda *t: aggregate(*t, 1, 2), inputs, train=False)
    assert found["walked"].work.flops > 0


def test_attention_inside_windows_is_the_layers():
    layer = WindowAttention(8, 2, 3)  # its table of positions starts at zero
    x = torch.randn(2, 6, 9, 8)
    q, k, v = layer.qkv(x).chunk(3, -1)
    y = layer.mix(qna.inside_windows(q, k, v, heads=2, side=3))
    torch.testing.assert_close(y, layer(x), atol=1e-5, rtol=1e-4)
