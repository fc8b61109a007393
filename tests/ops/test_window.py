"""Attention inside windows against the equation in plain loops."""

import math

import pytest
import torch

from saccade.ops import window as ops


def loops(qkv, table, window):
    """The equation, pixel by pixel; a window larger than the map is the map."""
    B, H, W, C = *qkv.shape[:3], qkv.shape[3] // 3
    heads = table.shape[1]
    d, y = C // heads, qkv.new_zeros(B, H, W, C)
    q, k, v = (t.unflatten(3, (heads, d)) for t in qkv.split(C, 3))
    h, w = min(window, H), min(window, W)
    for b in range(B):
        for n in range(heads):
            for i in range(H):
                for j in range(W):
                    logits, values = [], []
                    for a in range(i // h * h, min(i // h * h + h, H)):
                        for c in range(j // w * w, min(j // w * w + w, W)):
                            place = (i - a + window - 1) * (2 * window - 1) + j - c + window - 1
                            product = q[b, i, j, n] @ k[b, a, c, n] / math.sqrt(d)
                            logits.append(product + table[place, n])
                            values.append(v[b, a, c, n])
                    weights = torch.stack(logits).softmax(0)
                    y[b, i, j, n * d : (n + 1) * d] = weights @ torch.stack(values)
    return y


@pytest.mark.parametrize(("H", "W"), [(4, 6), (5, 3), (1, 2), (7, 4)])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_equals_plain_loops_gradients_included(H, W, window):
    qkv = torch.randn(2, H, W, 12, dtype=torch.float64, requires_grad=True)
    table = torch.randn((2 * window - 1) ** 2, 2, dtype=torch.float64, requires_grad=True)
    y, want = ops.window_attention(qkv, table, window), loops(qkv, table, window)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
    g = torch.randn_like(y)
    pairs = zip(
        *(
            torch.autograd.grad(z, (qkv, table), g, materialize_grads=True, allow_unused=True)
            for z in (y, want)
        ),
        strict=True,
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_weights_give_the_output():
    qkv, table = torch.randn(1, 4, 6, 12), torch.randn(9, 2)
    a = ops.masked_window_weights(qkv, table, 2, None, None)
    assert a.shape == (6, 2, 4, 4)
    torch.testing.assert_close(a.sum(3), torch.ones(6, 2, 4))
    v = ops.tiled(qkv[..., 8:], 2, 2).unflatten(2, (2, 2)).transpose(1, 2)
    y = ops.untiled((a @ v).transpose(1, 2).flatten(2), 4, 6, 2, 2)
    torch.testing.assert_close(y, ops.window_attention(qkv, table, 2))


@pytest.mark.parametrize(("H", "W", "h", "w"), [(4, 6, 2, 3), (5, 7, 2, 3), (1, 1, 1, 1)])
def test_tiling_is_undone(H, W, h, w):
    x = torch.randn(2, H, W, 3)
    tiles = ops.tiled(x, h, w)
    assert tiles.shape == (2 * -(-H // h) * -(-W // w), h * w, 3)
    assert torch.equal(tiles[0], x[0, :h, :w].flatten(0, 1))
    assert torch.equal(ops.untiled(tiles, H, W, h, w), x)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="window_attention: qkv is B H W 3C"):
        ops.WINDOW_ATTENTION(torch.randn(1, 4, 4, 12), torch.randn(8, 2), 2)
