"""The stems against golden values and plain loops, at sizes that blocks do and do not divide."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from saccade.layers.sasa_stem import AttentionStem, ConvStem, Mixture
from saccade.ops.sasa_block import cut, join

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["mixed", "merged"])
def test_golden_values(shared, form):
    files = sorted((shared / "golden" / "sasa").glob("stem_*.npz"))
    assert files
    for file in files:
        golden = {k: torch.from_numpy(v) for k, v in np.load(file).items() if v.ndim}
        m, out, dim = golden["wv_mix"].shape
        position = "relative" if "rel_row" in golden else "none"
        stem = AttentionStem(dim, out, heads=4, mixtures=m, position=position).double()
        places = {
            "query.weight": "wq", "key.weight": "wk", "value.weight": "wv_mix", "value.nu": "nu",
            "value.row": "emb_row", "value.col": "emb_col", "row": "rel_row", "col": "rel_col",
        }  # fmt: skip
        for name, parameter in stem.named_parameters():
            if name in places:
                parameter.data = golden[places[name]].reshape(parameter.shape)
        stem.value.form = form
        exact(stem.value.shares(), golden["p"])
        x = golden["x"].requires_grad_()
        y = stem.attend(x)
        exact(y, golden["y"])
        exact(F.max_pool2d(y, 4), golden["y_maxpool"])
        y.backward(golden["g"])
        exact(x.grad, golden["gx"])


def loops(stem, x, v):
    """Attention inside blocks, pixel by pixel; outside the image there are zeros, or nothing."""
    q, k = stem.query(x), stem.key(x)
    (B, C, H, W), s, n = q.shape, stem.side, stem.heads
    d, y = C // n, torch.zeros_like(q)
    for image, head, i, j in np.ndindex(B, n, H, W):
        mine = slice(head * d, (head + 1) * d)
        query, logits, values = q[image, mine, i, j], [], []
        for a in range(i - i % s, i - i % s + s):
            for b in range(j - j % s, j - j % s + s):
                inside = a < H and b < W
                if not inside and stem.border == "mask":
                    continue
                logit = query @ k[image, mine, a, b] if inside else query.new_zeros(())
                if stem.row is not None:
                    r = torch.cat((stem.row[a - i + s - 1], stem.col[b - j + s - 1]))
                    logit = logit + query @ r
                logits.append(logit)
                values.append(v[image, mine, a, b] if inside else query * 0)
        y[image, mine, i, j] = torch.stack(logits).softmax(0) @ torch.stack(values)
    return y


def mixture_loops(mixture, x):
    """Eq. 8-9, pixel by pixel."""
    B, _, H, W = x.shape
    y = x.new_zeros(B, mixture.weight.shape[1], H, W)
    for a, b in np.ndindex(H, W):
        place = mixture.row[a % mixture.side] + mixture.col[b % mixture.side]
        p = torch.stack([place @ nu for nu in mixture.nu]).softmax(0)
        for share, w in zip(p, mixture.weight, strict=True):
            y[:, :, a, b] += share * (x[:, :, a, b] @ w.T)
    return y


@torch.no_grad()
@pytest.mark.parametrize(("H", "W"), [(8, 4), (5, 7)])
@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize(
    ("values", "position", "side"),
    [("mixture", "relative", 4), ("pointwise", "none", 4), ("conv", "relative", 2)],
)
def test_equals_plain_loops_at_any_size(H, W, border, values, position, side):
    stem = AttentionStem(
        3, 8, heads=2, side=side, values=values, position=position, border=border
    ).double()
    x = torch.randn(2, 3, H, W, dtype=torch.float64)
    if values == "mixture":
        v = mixture_loops(stem.value, x)
    elif values == "pointwise":
        v = F.conv2d(x, stem.value.weight)
    else:
        v = F.conv2d(F.pad(x, (0, 1, 0, 1)), stem.value.weight)  # "same" for an even side
    exact(join(stem.values(x, cut(x, side)), H, W), v)
    exact(stem.attend(x), loops(stem, x, v))
    assert stem(x).shape == (2, 8, -(-H // side), -(-W // side))


def test_a_constant_pixel_of_the_fill_does_not_win_the_maximum():
    """Filled pixels take no part in norm or pooling: all-negative blocks stay negative."""
    stem = AttentionStem(3, 8, heads=2).eval()
    stem.norm.running_mean += 100.0
    assert (stem(torch.randn(1, 3, 9, 10)) < 0).all()


def test_negative_views_of_its_numbers_are_read_as_what_they_are():
    torch.manual_seed(0)
    stem, x = AttentionStem(3, 32, heads=2).eval(), torch.randn(1, 3, 16, 16)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for t in (stem.row, stem.col):
            t.normal_()
        stem.row = torch.nn.Parameter(torch._neg_view(stem.row.detach()))
        y = [stem(x) for _ in range(2)][-1]
        stem.row = torch.nn.Parameter(stem.row.detach().resolve_neg())
        torch.testing.assert_close(y, stem(x))


def test_mixing_maps_or_results_is_the_same():
    mixture = Mixture(3, 8, 4).double()
    x = torch.randn(2, 3, 1, 16, 3, dtype=torch.float64)
    merged = mixture(x)
    mixture.form = mixture.printed
    exact(mixture(x), merged)
    assert torch.allclose(mixture.shares().sum(-1), torch.ones(4, 4, dtype=torch.float64))


def test_the_stem_is_local_to_its_blocks():
    stem = AttentionStem(3, 8, heads=2).eval()
    x = torch.randn(1, 3, 16, 16)
    y = stem(x)
    x[:, :, :4, :4] += 1
    changed = (stem(x) != y).any(1)[0]
    assert changed[0, 0]
    assert changed.sum() == 1


@pytest.mark.parametrize(("H", "W"), [(32, 32), (33, 47), (5, 6)])
@pytest.mark.parametrize("stride", [2, 4])
def test_conv_stem(H, W, stride):
    y = ConvStem(3, 16, stride)(torch.randn(2, 3, H, W))
    assert y.shape == (2, 16, -(-H // stride), -(-W // stride))
    assert (y >= 0).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heads": 3}, "even widths, got out=64 heads=3"),
        ({"out": 12, "heads": 4}, "even widths"),
        ({"values": "learned"}, "values must be one of .* got values='learned'"),
        ({"border": "reflect"}, "border must be one of"),
        ({"position": "absolute"}, "position must be 'relative' or 'none'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        AttentionStem(3, **options)
    with pytest.raises(ValueError, match="stride must be 2 or 4, got stride=3"):
        ConvStem(3, stride=3)


@pytest.mark.parametrize("options", [{}, {"border": "mask", "values": "conv"}])
def test_exports_for_every_size(options, untyped):
    stem = AttentionStem(3, 8, heads=2, **options).eval()
    size = torch.export.Dim.DYNAMIC
    shapes = ({0: size, 2: size, 3: size},)
    with torch.no_grad():
        program = torch.export.export(stem, (torch.randn(2, 3, 24, 36),), dynamic_shapes=shapes)
        for shape in [(1, 3, 32, 33), (3, 3, 47, 64)]:
            x = torch.randn(shape)
            torch.testing.assert_close(program.module()(x), stem(x), rtol=1e-5, atol=1e-6)
