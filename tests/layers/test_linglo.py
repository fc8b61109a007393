import pytest
import torch

from saccade.layers.linglo import KeyOnlyAttention


def test_any_grid_is_a_row_of_tokens():
    layer = KeyOnlyAttention(12, 3)
    x = torch.randn(2, 5, 7, 12)
    torch.testing.assert_close(layer(x).flatten(1, 2), layer(x.flatten(1, 2)))
    assert layer.weights(x).shape == (2, 5, 7, 3)


def test_forms_are_the_same_layer():
    layer = KeyOnlyAttention(32, 4).double()
    x = torch.randn(2, 9, 9, 32, dtype=torch.float64)
    outputs = []
    for layer.backend in ("auto", "tokenwise", "folded", "collapsed"):
        outputs.append(layer(x))
    for y in outputs[1:]:
        torch.testing.assert_close(y, outputs[0], rtol=1e-12, atol=1e-12)


def test_the_context_and_the_saliency_matter_from_the_start():
    """The documented init: the gated part is a real share of K, and the saliency gets gradient."""
    shares, gradients = [], []
    for seed in range(5):
        torch.manual_seed(seed)
        layer = KeyOnlyAttention(64, 2)
        x = torch.nn.functional.layer_norm(torch.randn(4, 784, 64) + torch.randn(64), (64,))
        k = layer.key(x)
        g = torch.einsum("bnh,bnhd->bhd", layer.weights(x), k.unflatten(2, (2, 32))).flatten(1)
        gated = layer.gate(g[:, None] * layer.value(x))
        shares.append((gated.norm() / k.norm()).item())
        layer(x).square().mean().backward()
        ratio = layer.saliency.weight.grad.norm() / layer.key.weight.grad.norm()
        gradients.append(ratio.item())
    assert min(shares) > 0.1
    assert min(gradients) > 1e-4


@pytest.mark.parametrize(("dim", "heads"), [(10, 3), (8, 0), (4, 8)])
def test_heads_must_divide_dim(dim, heads):
    with pytest.raises(ValueError, match=f"heads must divide dim, got dim={dim} heads={heads}"):
        KeyOnlyAttention(dim, heads)


def test_unknown_backend():
    with pytest.raises(ValueError, match="backend must be 'auto' or one of"):
        KeyOnlyAttention(8, 2, backend="fast")
