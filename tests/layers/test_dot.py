import pytest
import torch

from saccade.layers.dot import DotProductAttention


def test_fused_and_naive_are_the_same_layer():
    layer = DotProductAttention(12, 3).double()
    x = torch.randn(2, 4, 5, 12, dtype=torch.float64)
    fused = layer(x)
    layer.fused = False
    torch.testing.assert_close(layer(x), fused, rtol=1e-12, atol=1e-12)
    a = layer.weights(x)
    assert a.shape == (2, 3, 20, 20)
    torch.testing.assert_close(a.sum(-1), torch.ones(2, 3, 20, dtype=torch.float64))


def test_against_loops():
    layer = DotProductAttention(4, 2).double()
    torch.nn.init.normal_(layer.qkv.weight)
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    q, k, v = (x @ w.T for w in layer.qkv.weight.chunk(3))
    y = torch.zeros_like(x)
    for i in range(2):
        s = slice(2 * i, 2 * i + 2)
        for n in range(6):
            e = torch.stack([(q[0, n, s] @ k[0, m, s] / 2**0.5).exp() for m in range(6)])
            y[0, n, s] = sum(e[m] / e.sum() * v[0, m, s] for m in range(6))
    torch.testing.assert_close(layer(x), y @ layer.mix.weight.T, rtol=1e-12, atol=1e-12)


def test_heads_must_divide_dim():
    with pytest.raises(ValueError, match="heads must divide dim, got dim=10 heads=3"):
        DotProductAttention(10, 3)
