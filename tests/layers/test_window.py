import pytest
import torch

from saccade.layers import flax, window
from saccade.layers.window import WindowAttention
from saccade.ops import window as ops
from saccade.ops.window import tiled, untiled


def layer_of(dim=8, heads=2, side=4):
    layer = WindowAttention(dim, heads, side).double()
    torch.nn.init.normal_(layer.table)
    return layer


def by_hand(layer, x):
    """One image, one window of pixels at a time, each exactly as large as the map lets it be."""
    y = torch.empty_like(x)
    side, heads = layer.window, layer.heads
    for top in range(0, x.shape[0], side):
        for left in range(0, x.shape[1], side):
            part = x[top : top + side, left : left + side]
            places = [(i, j) for i in range(part.shape[0]) for j in range(part.shape[1])]
            q, k, v = layer.qkv(part.flatten(0, 1)).unflatten(1, (3, heads, -1)).unbind(1)
            logits = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
            for a, (ya, xa) in enumerate(places):
                for b, (yb, xb) in enumerate(places):
                    row = (ya - yb + side - 1) * (2 * side - 1) + xa - xb + side - 1
                    logits[:, a, b] += layer.table[row]
            z = torch.einsum("hij,jhd->ihd", logits.softmax(-1), v).flatten(1)
            y[top : top + side, left : left + side] = layer.mix(z).view_as(part)
    return y


@pytest.mark.parametrize(("H", "W"), [(4, 16), (4, 12), (5, 8), (7, 9), (3, 2), (1, 6), (4, 4)])
def test_any_size_is_windows_of_what_is_there(H, W):
    """Where the windows tile the map and where they do not: filling never takes part."""
    layer = layer_of()
    x = torch.randn(2, H, W, 8, dtype=torch.float64)
    expected = torch.stack([by_hand(layer, image) for image in x])
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(("H", "W"), [(4, 16), (5, 9), (3, 2)])
def test_what_is_exported_is_the_same(H, W, monkeypatch):
    layer = layer_of()
    x = torch.randn(2, H, W, 8, dtype=torch.float64)
    expected = layer(x)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("exporting", [False, True])
def test_windows_are_taken_apart_and_put_together(exporting, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: exporting)
    x = torch.arange(2 * 3 * 5).view(2, 3, 5, 1) + 1.0
    t = tiled(x, 2, 2)
    assert t.shape == (2 * 6, 4, 1)
    assert t[0].flatten().tolist() == [1, 2, 6, 7]
    assert t[2].flatten().tolist() == [5, 0, 10, 0]
    assert t[5].flatten().tolist() == [15, 0, 0, 0]
    assert t[6].flatten().tolist() == [16, 17, 21, 22]
    assert torch.equal(untiled(t, 3, 5, 2, 2), x)


def test_weights_are_a_softmax_over_the_window():
    layer = layer_of()
    x = torch.randn(1, 6, 4, 8, dtype=torch.float64)
    p = layer.weights(x)
    assert p.shape == (2, 2, 16, 16)
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[..., 0]))
    assert not p[1, :, :, 8:].any()  # the second window reaches beyond the map
    z = p @ ops._split(layer.qkv(x), layer.table, layer.window)[0][2]
    y = untiled(z.transpose(1, 2).flatten(2), 6, 4, 4, 4)
    torch.testing.assert_close(layer(x), layer.mix(y))


def test_every_parameter_learns_with_filling_too():
    layer = layer_of()
    layer(torch.randn(1, 5, 6, 8, dtype=torch.float64)).square().sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_close(dtype):
    layer = WindowAttention(32, 4, 7)
    x = torch.randn(1, 9, 9, 32)
    exact = layer(x)
    with torch.autocast("cpu", dtype):
        mixed = layer(x)
    for y in (mixed, layer.to(dtype)(x.to(dtype))):
        assert y.isfinite().all()
        assert (y - exact).norm() / exact.norm() < 5 * torch.finfo(dtype).eps


def test_a_map_without_pixels_is_refused_an_empty_batch_is_not():
    layer = WindowAttention(8, 2, 4)
    with pytest.raises(ValueError, match="window_attention: a map has pixels, got H=0 W=4"):
        layer(torch.empty(2, 0, 4, 8))
    assert layer(torch.empty(0, 4, 4, 8)).shape == (0, 4, 4, 8)


def test_a_table_of_fewer_heads_is_refused():
    """One head fewer divides the channels as well: it would be another function."""
    layer, x = WindowAttention(8, 2, 4).eval(), torch.randn(1, 5, 5, 8)
    layer.table = torch.nn.Parameter(layer.table.detach()[:, :1].clone())
    for grad in (True, False):
        with (
            torch.set_grad_enabled(grad),
            pytest.raises(ValueError, match=r"a column for each of 2 heads, got \(49, 1\)"),
        ):
            layer(x)


def test_the_authors_order_of_q_k_and_v():
    layer = layer_of(dim=4, heads=2)
    theirs = flax.dump(layer, window.flax_entries(layer))
    kernel = theirs["to_qkv/kernel"]  # columns: head, then q k v, then channel
    q, k, v = layer.qkv.weight.detach().numpy().reshape(3, 2, 2, 4)
    for head in range(2):
        for i, part in enumerate((q, k, v)):
            columns = slice((head * 3 + i) * 2, (head * 3 + i) * 2 + 2)
            assert (kernel[:, columns] == part[head].T).all()
    again = WindowAttention(4, 2, 4).double()
    flax.load(again, window.flax_entries(again), theirs, "test")
    x = torch.randn(1, 5, 5, 4, dtype=torch.float64)
    assert torch.equal(again(x), layer(x))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((8, 3, 7), "heads must divide dim, got dim=8 heads=3"), ((8, 2, 0), "at least one pixel")],
)
def test_what_cannot_be_built_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        WindowAttention(*arguments)
