"""QnA's layers: the authors' own inputs, outputs and gradients, and what they leave open."""

import json
from itertools import product

import numpy as np
import pytest
import torch

from saccade.layers import qna
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling, QnADown
from saccade.ops import qna as ops

GOLDEN = [f"g0{i}" for i in range(1, 7)]


def golden(shared, name):
    """A case of the authors' layer: configuration, arrays, and our layer with its weights."""
    (path,) = (shared / "golden" / "qna").glob(f"layer_{name}_*.npz")
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    config = json.loads(bytes(arrays.pop("config")).decode())
    params = {key[2:]: a for key, a in arrays.items() if key.startswith("w:")}
    return arrays, qna.from_flax(params, config)


def relative(ours, theirs):
    theirs = torch.as_tensor(theirs)
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("backend", ["auto", "walked", "unrolled", "convolved"])
@pytest.mark.parametrize(
    ("dtype", "end", "bound"), [("float32", "", 1e-5), ("float64", "_f64", 1e-12)]
)
def test_the_authors_outputs_and_gradients(shared, name, backend, dtype, end, bound):
    arrays, layer = golden(shared, name)
    layer = layer.to(getattr(torch, dtype))
    layer.backend = backend
    x = torch.tensor(arrays["x"]).to(layer.query.dtype).requires_grad_()
    y = layer(x)
    y.backward(torch.tensor(arrays["cotangent"]).to(y.dtype))
    assert relative(y, arrays["out" + end]) < bound
    assert relative(x.grad, arrays["grad_x" + end]) < bound
    for path, entry in qna.flax_entries(layer).items():
        gradient = layer.get_parameter(entry.parameter).grad
        assert relative(entry.to_theirs(gradient), arrays[f"g:{path}{end}"]) < bound, path


@pytest.mark.parametrize("name", GOLDEN)
def test_the_authors_queries_scores_and_sums(shared, name):
    arrays, layer = golden(shared, name)
    x = torch.tensor(arrays["x"])
    with torch.no_grad():
        assert relative(layer.unit_queries(), arrays["i:query_norm_scaled"]) < 1e-6
        assert relative(layer.scores(x), arrays["i:qk_score"]) < 1e-6
        z = layer.aggregate(x, fold=True).flatten(3)
    assert relative(z, arrays["i:attn_out_preproj"]) < 1e-5


def test_weights_travel_back_and_forth():
    config = {
        "cin": 6,
        "feat": 8,
        "h": 2,
        "k": 3,
        "s": 2,
        "L": 2,
        "use_bias": True,
        "out_features": 5,
    }
    layer = LearnedQueryAttention(6, 2, 3, 2, 2, width=8, out_dim=5, bias=True)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
    params = qna.flax.dump(layer, qna.flax_entries(layer))
    assert params["Wk"].shape == (6, 8)
    assert params["Wk_b"].shape == (2, 4)
    assert params["rpe_bias"].shape == (9, 4)
    assert params["attn_scale_weights"].shape == (1, 1, 9, 4)
    assert params["to_out/kernel"].shape == (8, 5)
    again = qna.from_flax(params, config)
    x = torch.randn(2, 5, 7, 6)
    assert torch.equal(again(x), layer(x))
    # row = ky * k + kx, column = l * heads + head
    assert params["rpe_bias"][1 * 3 + 2, 1 * 2 + 0] == layer.rpe[1, 2, 1, 0].item()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"Wk": None}, r"it has no 'Wk' \(shape \(4, 4\)\)"),
        (
            {"rpe_bias": np.zeros((9, 3))},
            r"'rpe_bias' has shape \(9, 3\), where \(9, 4\) is needed",
        ),
        ({"bias": np.zeros(4)}, "'bias' has no place"),
    ],
)
def test_a_wrong_tree_is_refused_by_its_first_wrong_entry(change, says):
    layer = LearnedQueryAttention(4, 2)
    params = {**qna.flax.dump(layer, qna.flax_entries(layer)), **change}
    params = {key: a for key, a in params.items() if a is not None}
    with pytest.raises(ValueError, match=says):
        qna.from_flax(params, {"cin": 4, "feat": 4, "h": 2, "k": 3, "s": 1, "L": 2})


def test_an_option_of_the_authors_that_we_do_not_have_is_refused():
    config = {"cin": 4, "feat": 4, "h": 2, "k": 3, "s": 1, "L": 2, "attn_scale": "posneg"}
    with pytest.raises(ValueError, match="attn_scale must be 'normal' or 'none', got 'posneg'"):
        qna.from_flax({}, config)


# -- the layer -------------------------------------------------------------------------------------


def test_a_query_asks_keys_that_never_exist():
    layer = LearnedQueryAttention(8, 2, queries=3, bias=True).double()
    torch.nn.init.normal_(layer.key.bias)
    x = torch.randn(1, 3, 4, 8, dtype=torch.float64)
    k = layer.key(x).unflatten(3, (2, 4))
    q = layer.query.unflatten(1, (2, 4))
    q = q / q.norm(dim=-1, keepdim=True) / 2
    expected = torch.einsum("bhwnd,lnd->bhwln", k, q)
    torch.testing.assert_close(layer.scores(x), expected, rtol=1e-5, atol=1e-5)
    layer.normalize = False
    expected = torch.einsum("bhwnd,lnd->bhwln", k, layer.query.unflatten(1, (2, 4)) / 2)
    torch.testing.assert_close(layer.scores(x), expected)


@pytest.mark.parametrize(("H", "W", "stride"), [(7, 10, 1), (7, 10, 2), (9, 5, 3), (1, 1, 2)])
@pytest.mark.parametrize("window", [1, 3, 13])
def test_the_map_is_divided_by_the_stride_rounded_up(H, W, stride, window):
    layer = LearnedQueryAttention(8, 2, window, stride, width=16, out_dim=12)
    y = layer(torch.randn(2, H, W, 8))
    assert y.shape == (2, -(-H // stride), -(-W // stride), 12)


def test_weights_explain_the_output():
    layer = LearnedQueryAttention(8, 2, 5, 2, 3).double()
    torch.nn.init.normal_(layer.rpe)
    x = torch.randn(1, 6, 7, 8, dtype=torch.float64)
    p = layer.weights(x)
    assert p.shape == (1, 3, 4, 3, 2, 5, 5)
    torch.testing.assert_close(p.sum((-2, -1)), torch.ones_like(p[..., 0, 0]))
    v = torch.nn.functional.pad(layer.values(x), (0, 0, 0, 0, 2, 2, 2, 2))
    windows = v.unfold(1, 5, 2).unfold(2, 5, 2)  # 1 3 4 h d k k
    c = torch.einsum("bijlhyx,yxlh->bijhyx", p, layer.scale)
    z = torch.einsum("bijhyx,bijhdyx->bijhd", c, windows)
    torch.testing.assert_close(layer(x), layer.mix(z.flatten(3)))


def test_a_window_as_large_as_the_map_reads_it_whole():
    """The authors' QnA head: no padding, k = H = W, one output."""
    layer = LearnedQueryAttention(8, 2, 6, padding=0).double()
    x = torch.randn(2, 6, 6, 8, dtype=torch.float64)
    p = torch.softmax(layer.scores(x).flatten(1, 2), 1)  # rpe starts at zero
    z = torch.einsum(
        "bnlh,nlh,bnhd->bhd", p, layer.scale.flatten(0, 1), layer.values(x).flatten(1, 2)
    )
    torch.testing.assert_close(layer(x)[:, 0, 0], layer.mix(z.flatten(1)))
    with pytest.raises(ValueError, match=r"no window fits into the map, got \(6, 5\) pixels"):
        layer(x[:, :, :5])


def test_a_bias_on_the_keys_changes_nothing():
    layer = LearnedQueryAttention(8, 2, bias=True).double()
    x = torch.randn(1, 4, 4, 8, dtype=torch.float64)
    before = layer(x)
    torch.nn.init.normal_(layer.key.bias)
    torch.testing.assert_close(layer(x), before)


def test_how_it_starts():
    layer = LearnedQueryAttention(256, 8, 7, queries=4)
    assert layer.query.abs().max() <= 2 * 32**-0.5 + 1e-6
    assert layer.query.std().item() == pytest.approx(0.88 * 32**-0.5, rel=0.1)
    assert not layer.rpe.any()
    assert layer.scale.std().item() == pytest.approx(0.02, rel=0.1)
    for linear in (layer.key, layer.value, layer.mix):
        assert linear.bias is None
        assert linear.weight.std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert layer.undecayed == ("rpe", "scale")
    assert LearnedQueryAttention(8, 2, scale=False).undecayed == ("rpe",)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_close(dtype):
    layer = LearnedQueryAttention(64, 8, 7)
    torch.nn.init.normal_(layer.scale)
    x = torch.randn(2, 9, 9, 64)
    exact = layer(x)
    with torch.autocast("cpu", dtype):
        mixed = layer(x)
    pure = layer.to(dtype)(x.to(dtype))
    for y in (mixed, pure):
        assert y.dtype == dtype
        assert (y - exact).norm() / exact.norm() < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"window": 4}, "its side must be odd, got window=4; try 3 or 5"),
        ({"window": 0}, "its side must be odd, got window=0; try 1 or 3"),
        ({"stride": 0}, "stride and queries start at 1, got stride=0 queries=2"),
        ({"queries": 0}, "stride and queries start at 1"),
        ({"heads": 3}, "heads must divide width, got width=8 heads=3"),
        ({"heads": 3, "width": 16}, "heads must divide width, got width=16 heads=3"),
        ({"heads": 0}, "heads must divide width"),
        ({"padding": 3}, "padding must be from 0 to window - 1"),
        ({"padding": -1}, "padding must be from 0 to window - 1"),
        ({"backend": "fast"}, r"backend must be one of \('auto', 'unrolled', 'convolved', "),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, says):
    with pytest.raises(ValueError, match=r"LearnedQueryAttention: .*" + says):
        LearnedQueryAttention(8, **{"heads": 2, **arguments})


# -- up and down -----------------------------------------------------------------------------------


def test_upsampling_lays_its_queries_out_as_blocks():
    """Eq. 5 by hand: where scores are flat and windows are pixels, only the layout is left."""
    layer = LearnedQueryUpsampling(4, 1, window=3, factor=2).double()
    with torch.no_grad():
        for linear in (layer.value, layer.mix):
            linear.weight.copy_(torch.eye(4))
        layer.rpe.fill_(-torch.inf)
        # query 0 sees the pixel itself, 1 the one to the right, 2 below, 3 below and to the right
        for query, (y, x) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)]):
            layer.rpe[y, x, query] = 0
            layer.rpe[1, 1, query].clamp_(min=-1e3)  # and at the border the pixel itself
    x = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    x[..., 0] = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = torch.tensor(
        [
            [1, 2, 2, 3, 3, 3],
            [4, 5, 5, 6, 6, 3],
            [4, 5, 5, 6, 6, 6],
            [4, 4, 5, 5, 6, 6],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(layer(x)[0, ..., 0], expected, rtol=1e-15, atol=0)
    layer.backend = "walked"  # whose sums of one number and zeros are that number
    y = layer(x)
    assert y.shape == (1, 4, 6, 4)
    torch.testing.assert_close(y[0, ..., 0], expected, rtol=0, atol=0)


def test_upsampling_is_attention_query_by_query():
    layer = LearnedQueryUpsampling(6, 2, 3, factor=3, width=8, out_dim=5).double()
    torch.nn.init.normal_(layer.rpe)
    assert layer.scale is None
    x = torch.randn(2, 4, 3, 6, dtype=torch.float64)
    y = layer(x)
    assert y.shape == (2, 12, 9, 5)
    s, v = layer.scores(x), layer.values(x)
    for i, j in product(range(3), range(3)):
        one = slice(3 * i + j, 3 * i + j + 1)
        z = ops.unrolled(s[:, :, :, one], v, layer.rpe[:, :, one], None, 1, 1)
        torch.testing.assert_close(y[:, i::3, j::3], layer.mix(z.flatten(3)))


def test_upsampling_by_nothing_is_refused():
    with pytest.raises(ValueError, match="factor must be at least 1, got factor=0"):
        LearnedQueryUpsampling(8, 2, factor=0)


def test_the_way_down_is_what_it_says():
    down = QnADown(8, 4, 3, 2, drop_path=0.9).eval()
    x = torch.randn(2, 8, 5, 7)
    y = down(x)
    assert y.shape == (2, 16, 3, 4)
    tokens = x.permute(0, 2, 3, 1)
    z = tokens[:, ::2, ::2] @ down.skip.weight[:, :, 0, 0].T + down.mix(down.mix_norm(tokens))
    z = z + down.ffn(down.ffn_norm(z))
    torch.testing.assert_close(y.permute(0, 2, 3, 1), z)
    assert (down.mix.stride, down.mix.heads, down.mix.query.shape) == (2, 4, (2, 16))


def test_drop_path_spares_the_first_half_of_the_way_down():
    down = QnADown(4, 2, 3, 1, drop_path=1 - 1e-6).train()
    x = torch.randn(2, 4, 6, 6)
    tokens = x.permute(0, 2, 3, 1)
    first = down.skip(x).permute(0, 2, 3, 1) + down.mix(down.mix_norm(tokens))
    torch.testing.assert_close(down(x).permute(0, 2, 3, 1), first)


def test_values_may_be_hooked_or_replaced():
    """As LoRA, quantisation and feature extractors do."""
    layer, x = LearnedQueryAttention(16, heads=4, window=3), torch.randn(1, 6, 6, 16)
    y, seen = layer(x), []
    hook = layer.value.register_forward_hook(lambda *_: seen.append(1))
    assert torch.allclose(layer(x), y, atol=1e-5)
    assert seen
    hook.remove()
    layer.value = torch.nn.Sequential(layer.value, torch.nn.Identity())
    assert torch.allclose(layer(x), y, atol=1e-5)
