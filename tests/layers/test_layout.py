"""One convention for all layers: layouts, tokens, masks, and the calls of other people's slots."""

from itertools import product

import pytest
import torch
from torch import nn

import saccade.layers as layers
from saccade.layers import (
    RPCPE,
    DotProductAttention,
    KeyOnlyAttention,
    LearnedQueryAttention,
    LearnedQueryUpsampling,
    StandAloneAttention,
    WindowAttention,
)

DIM = 8
MAKE = {
    "sasa": lambda **how: StandAloneAttention(DIM, 12, heads=2, window=3, **how),
    "sasa_dilated": lambda **how: StandAloneAttention(
        DIM, heads=2, window=3, dilation=2, table=True, **how
    ),
    "qna": lambda **how: LearnedQueryAttention(DIM, 2, stride=2, out_dim=12, **how),
    "qna_up": lambda **how: LearnedQueryUpsampling(DIM, 2, out_dim=12, **how),
    "key_only": lambda **how: KeyOnlyAttention(DIM, 2, **how),
    "dot": lambda **how: DotProductAttention(DIM, 2, **how),
    "window": lambda **how: WindowAttention(DIM, 2, 3, **how),
    "rpcpe": lambda **how: RPCPE(DIM, norm=False, **how),
}


def layer_of(name, **how):
    torch.manual_seed(0)
    layer = MAKE[name](**how)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.std() < 1e-3:
                parameter.normal_(std=0.3)
    return layer.double()


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("grad", [False, True])
def test_layouts_are_one_function(name, grad):
    x = torch.randn(2, 5, 7, DIM, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        want = layer_of(name, layout="NHWC")(x)
        nchw = layer_of(name, layout="NCHW")(x.permute(0, 3, 1, 2))
        tokens = layer_of(name, layout="tokens")(x.flatten(1, 2), size=(5, 7))
        by_layer = layer_of(name, layout="tokens", size=(5, 7))(x.flatten(1, 2))
        plain = layer_of(name)(x.flatten(1, 2), (5, 7))
    torch.testing.assert_close(nchw, want.permute(0, 3, 1, 2))
    for other in (tokens, by_layer, plain):
        torch.testing.assert_close(other, want.flatten(1, 2))


@pytest.mark.parametrize("name", MAKE)
def test_a_wrong_layout_is_a_sentence(name):
    one = layer_of(name, layout="NHWC")
    with pytest.raises(ValueError, match="say layout='NCHW'"):
        one(torch.zeros(1, DIM, 5, 6).double())
    with pytest.raises(ValueError, match=r"got \(1, 5, 6, 9\); give C=8"):
        one(torch.zeros(1, 5, 6, 9).double())
    with pytest.raises(ValueError, match="layout must be one of"):
        layer_of(name, layout="BCHW")
    if not one.gridless:
        with pytest.raises(ValueError, match=r"say size=\(H, W\)"):
            layer_of(name, layout="tokens")(torch.zeros(1, 30, DIM).double())
        with pytest.raises(ValueError, match=r"30 tokens are no grid of \(5, 5\)"):
            layer_of(name, layout="tokens")(torch.zeros(1, 30, DIM).double(), size=(5, 5))


def test_a_map_that_may_be_read_both_ways_is_refused():
    x = torch.zeros(1, DIM, DIM, DIM)
    for kind in (LearnedQueryAttention, LearnedQueryUpsampling, KeyOnlyAttention):
        with pytest.raises(ValueError, match=r"alike.*say layout='NHWC' or layout='NCHW'"):
            kind(DIM, 2)(x)
        assert kind(DIM, 2, layout="NCHW")(x).shape[1] == DIM
    assert RPCPE(DIM)(x).shape == x.shape  # B C H W, as any convolution


@pytest.mark.parametrize("name", ["sasa", "sasa_dilated", "qna", "qna_up", "rpcpe"])
@pytest.mark.parametrize("grad", [False, True])
def test_padding_is_as_if_the_image_ended(name, grad):
    """Of a window layer, each image in a padded batch comes out as it does alone."""
    how = {"border": "mask"} if "sasa" in name else {}
    layer, a, b = (
        layer_of(name, layout="NHWC", **how),
        torch.randn(1, 4, 6, DIM),
        torch.randn(1, 6, 4, DIM),
    )
    a, b, batch = a.double(), b.double(), torch.randn(2, 6, 6, DIM, dtype=torch.float64)
    batch[0, :4], batch[1, :, :4] = a[0], b[0]
    padding = torch.ones(2, 6, 6, dtype=torch.bool)
    padding[0, :4], padding[1, :, :4] = False, False
    with torch.set_grad_enabled(grad):
        both, one, two = layer(batch, key_padding_mask=padding), layer(a), layer(b)
        flat = layer(batch, key_padding_mask=padding.flatten(1))
    assert both.isfinite().all()
    torch.testing.assert_close(flat, both)
    torch.testing.assert_close(both[:1, : one.shape[1]], one)
    torch.testing.assert_close(both[1:, :, : two.shape[2]], two)


@pytest.mark.parametrize("name", ["key_only", "dot"])
def test_padded_tokens_are_not_seen(name):
    layer, x = layer_of(name), torch.randn(2, 9, DIM, dtype=torch.float64)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, 5:] = True
    y, weights = layer(x, key_padding_mask=padding, return_weights=True)
    torch.testing.assert_close(y[:1, :5], layer(x[:1, :5]))
    torch.testing.assert_close(y[1:], layer(x[1:]))
    assert (weights[0, 5:] if name == "key_only" else weights[0, :, :, 5:]).abs().max() == 0
    assert layer(x, key_padding_mask=torch.ones_like(padding)).isfinite().all()


def qna_by_loops(layer, x, padding):
    """Attention of one window, query and head at a time, over the places that are no padding."""
    B, H, W = padding.shape
    s, v, k = layer.scores(x), layer.values(x), layer.window
    down, along = (-(-side // layer.stride) for side in (H, W))
    z = torch.zeros(B, down, along, layer.heads, v.shape[-1], dtype=x.dtype)
    for b, i, j, q, n in product(*map(range, (B, down, along, layer.queries, layer.heads))):
        above, below = torch.zeros(v.shape[-1], dtype=x.dtype), torch.zeros((), dtype=x.dtype)
        for a, c in product(range(k), repeat=2):
            row, column = i * layer.stride + a - k // 2, j * layer.stride + c - k // 2
            if 0 <= row < H and 0 <= column < W and not padding[b, row, column]:
                e = (s[b, row, column, q, n] + layer.rpe[a, c, q, n]).exp()
                below = below + e
                above = above + e * layer.scale[a, c, q, n] * v[b, row, column].flatten(0, -2)[n]
        z[b, i, j, n] += above / below if below > 0 else above
    return layer.mix(z.flatten(3))


def key_only_by_loops(layer, x, padding):
    """Eq. 2-4, a head and a token at a time, over the tokens that are no padding."""
    k, v, y = layer.key(x), layer.value(x), torch.zeros_like(x)
    d = DIM // layer.saliency.out_features
    for b in range(len(x)):
        there = [n for n in range(x.shape[1]) if not padding[b, n]]
        g = torch.zeros(DIM, dtype=x.dtype)
        for i, row in enumerate(layer.saliency.weight):
            e = torch.stack([(row @ k[b, n] / d**0.5).exp() for n in there])
            for n, weight in zip(there, e / e.sum(), strict=True):
                g[i * d : (i + 1) * d] += weight * k[b, n, i * d : (i + 1) * d]
        for n in range(x.shape[1]):
            y[b, n] = layer.mix(layer.gate(g * v[b, n]) + k[b, n])
    return y


@pytest.mark.parametrize(
    ("name", "shape", "loops"),
    [("qna", (2, 4, 5, DIM), qna_by_loops), ("key_only", (2, 9, DIM), key_only_by_loops)],
)
def test_masks_against_plain_loops(name, shape, loops):
    """Padding anywhere, also all of a window: the result, and the gradients of x and weights."""
    layer = layer_of(name, **({"layout": "NHWC"} if name == "qna" else {}))
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    padding = torch.rand(shape[:-1]) < 0.4
    padding[0, :2] = True
    ours, exact = layer(x, key_padding_mask=padding), loops(layer, x, padding)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)
    inputs = [x, *layer.parameters()]
    g = torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad(y, inputs, g) for y in (ours, exact)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MAKE)
def test_weights_beside_the_result(name):
    layer, x = layer_of(name, layout="NHWC"), torch.randn(1, 6, 6, DIM, dtype=torch.float64)
    if name == "rpcpe":
        with pytest.raises(ValueError, match="no attention weights"):
            layer(x, return_weights=True)
        return
    y, weights = layer(x, return_weights=True)
    torch.testing.assert_close(y, layer(x))
    torch.testing.assert_close(weights, layer.weights(layer.mapped(x)[0]))


@pytest.mark.parametrize("name", MAKE)
def test_what_slots_pass_is_used_or_refused(name):
    layer, x = layer_of(name, layout="tokens", size=(5, 6)), torch.randn(1, 30, DIM).double()
    want = layer(x)
    same = layer(
        x, (5, 6), attn_mask=None, rope=None, mask=None, is_causal=False, shared_rel_pos_bias=None
    )
    torch.testing.assert_close(same, want)
    torch.testing.assert_close(layer(x, feat_size=torch.Size((5, 6))), want)
    pair = layer(x, x, x, need_weights=False)  # torch.nn.MultiheadAttention's call
    assert pair[1] is None
    torch.testing.assert_close(pair[0], want)
    for word in ("rope", "shared_rel_pos_bias"):
        with pytest.raises(ValueError, match=f"has no use for {word}="):
            layer(x, **{word: torch.ones(3)})
    with pytest.raises(ValueError, match="has no use for is_causal="):
        layer(x, is_causal=True)
    with pytest.raises(ValueError, match="query, key and value must be one tensor"):
        layer(x, x.clone(), x)
    if not layer.pairs:
        torch.testing.assert_close(layer(x, attn_mask=torch.zeros(30, 30)), want)
        with pytest.raises(ValueError, match="compares no pairs of pixels"):
            layer(x, mask=torch.ones(30, 30))
    with pytest.raises(ValueError, match="key_padding_mask is bool"):
        layer(x, key_padding_mask=torch.zeros(1, 30))


def test_a_mask_of_pairs_in_windows():
    """Swin's mask, (windows of an image) N N, is added to the logits; bool ones forbid."""
    layer = layer_of("window", layout="NHWC")
    x, mask = torch.randn(2, 6, 3, DIM).double(), torch.randn(2, 9, 9).double()
    _, weights = layer(x, mask=mask, return_weights=True)
    want = (layer.weights(x).log() + mask.repeat(2, 1, 1)[:, None]).softmax(-1)
    torch.testing.assert_close(weights, want)
    allowed = torch.rand(4, 2, 9, 9) > 0.5
    allowed |= torch.eye(9, dtype=torch.bool)
    y, weights = layer(x, attn_mask=allowed, return_weights=True)
    assert weights[~allowed].abs().max() == 0
    v = layer.qkv(x)[..., 2 * DIM :].reshape(4, 9, 2, -1).transpose(1, 2)
    z = (weights @ v).transpose(1, 2).reshape(2, 6, 3, DIM)
    torch.testing.assert_close(y, layer.mix(z))
    with pytest.raises(ValueError, match="a mask of pairs is"):
        layer(x, mask=torch.zeros(3, 9, 9))


@pytest.mark.parametrize("name", ["qna", "rpcpe", "key_only"])
def test_tokens_before_the_map(name):
    how = {"layout": "tokens", "prefix": 2, "size": (4, 4)}
    layer = layer_of(name, **how)
    layer.stride = 1  # as many tokens out as in
    x = torch.randn(2, 18, DIM, dtype=torch.float64)
    y = layer(x)
    assert y.shape[:2] == (2, 18)
    if name != "key_only":
        alone = layer_of(name, layout="tokens", size=(4, 4))
        alone.stride = 1
        torch.testing.assert_close(y[:, 2:], alone(x[:, 2:]))
    if name == "qna":  # the class token has seen the whole image
        x.requires_grad_()
        (g,) = torch.autograd.grad(layer(x)[:, 0].sum(), x)
        assert (g[:, 2:].abs().sum(-1) > 0).all()
    with pytest.raises(ValueError, match="a class token has no window"):
        layer_of("window", **{"layout": "tokens"}).place(DIM, "tokens", None, 1)


def test_the_grid_of_larger_images_keeps_its_shape():
    layer = layer_of("rpcpe", layout="tokens", size=(2, 3))
    assert layer(torch.randn(1, 24, DIM).double()).shape == (1, 24, DIM)
    with pytest.raises(ValueError, match="23 tokens are no grid"):
        layer(torch.randn(1, 23, DIM).double())


def test_a_block_does_not_read_the_parameters_of_a_map_layer_the_wrong_way():
    x = torch.randn(1, 6, 7, DIM)
    norm, drop = nn.LayerNorm(DIM), nn.Identity()
    from saccade.layers.ready import residual

    for kind in (KeyOnlyAttention, LearnedQueryAttention):
        with torch.no_grad(), pytest.raises(ValueError, match="say layout='NHWC'"):
            residual(x, norm, kind(DIM, 2, layout="NCHW"), drop)


def test_every_name_is_importable():
    for name in layers.__all__:
        assert issubclass(getattr(layers, name), nn.Module), name
    with pytest.raises(AttributeError, match="no attribute 'Swin'"):
        _ = layers.Swin
