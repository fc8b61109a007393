"""Local attention with masks, tables, dilation, causal and 1-D windows, beside its equation."""

import math

import pytest
import torch

from saccade.ops.neighbourhood import (
    NEIGHBOURHOOD,
    fits,
    neighbourhood_attention,
    neighbourhood_weights,
)
from saccade.ops.sasa import local_attention

HEADS, D = 2, 4


def equation(q, k, v, row, col, table, seen, heads, kh, kw, dilation, causal, border):
    """Loops over pixels, heads and places."""
    B, C, H, W = q.shape
    d = C // heads
    y = []
    for b in range(B):
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            for i in range(H):
                for j in range(W):
                    logits, values = [], []
                    for u in range(-(kh // 2), kh // 2 + 1):
                        for w in range(-(kw // 2), kw // 2 + 1):
                            a, c = i + dilation * u, j + dilation * w
                            inside = 0 <= a < H and 0 <= c < W
                            if causal and (u, w) > (0, 0):
                                continue
                            if not inside and border == "mask":
                                continue
                            if inside and seen is not None and seen[b, a, c] == 0:
                                continue
                            query = q[b, part, i, j]
                            s = query.new_zeros(())
                            if k is not None and inside:
                                s = s + query @ k[b, part, a, c]
                            if row is not None:
                                r = torch.cat(
                                    (row[h % len(row), u + kh // 2], col[h % len(col), w + kw // 2])
                                )
                                s = s + query @ r
                            if table is not None:
                                s = s + table[h % len(table), u + kh // 2, w + kw // 2]
                            logits.append(s)
                            values.append(v[b, part, a, c] if inside else v.new_zeros(d))
                    if not logits:
                        y.append(v.new_zeros(d))
                        continue
                    y.append(torch.stack(logits).softmax(0) @ torch.stack(values))
    return torch.stack(y).view(B, heads, H, W, d).permute(0, 1, 4, 2, 3).reshape(B, C, H, W)


def case(kh=3, kw=3, dilation=1, causal=False, border="zero", table=False, seen=False,
         content=True, position=True, shared=True, H=4, W=5):  # fmt: skip
    torch.manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    B, C, n = 2, HEADS * D, 1 if shared else HEADS
    mask = None
    if seen:
        mask = (torch.rand(B, H, W) > 0.4).double()
        mask[0, :3] = 0  # windows that see nothing
    return (
        draw(B, C, H, W), draw(B, C, H, W) if content else None, draw(B, C, H, W),
        draw(n, kh, D // 2) if position else None, draw(n, kw, D // 2) if position else None,
        draw(n, kh, kw) if table else None, mask, HEADS, kh, kw, dilation, causal, border,
    )  # fmt: skip


CASES = {
    "table": {"table": True},
    "table_of_heads": {"table": True, "shared": False, "border": "mask"},
    "mask": {"seen": True},
    "mask_border": {"seen": True, "border": "mask", "table": True},
    "dilated": {"dilation": 2},
    "dilated_mask": {"dilation": 2, "border": "mask", "H": 4, "W": 6},
    "dilated_mask_odd": {"dilation": 2, "border": "mask"},
    "dilated_seen": {"dilation": 3, "seen": True, "shared": False},
    "causal": {"causal": True},
    "causal_mask": {"causal": True, "border": "mask", "table": True, "seen": True},
    "row": {"kh": 1, "kw": 5, "border": "mask"},
    "column": {"kh": 5, "kw": 1, "border": "mask", "shared": False},
    "row_zero": {"kh": 1, "kw": 3},
    "row_causal": {"kh": 1, "kw": 5, "causal": True, "border": "mask"},
    "row_dilated": {"kh": 1, "kw": 3, "border": "mask", "dilation": 2, "H": 4, "W": 6},
    "oblong": {"kh": 3, "kw": 5},
    "positions_only": {"content": False, "dilation": 2},
    "content_only": {"position": False, "table": True, "dilation": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_every_form_is_the_equation(name):
    inputs = case(**CASES[name])
    want = equation(*inputs)
    tensors = [t for t in inputs[:6] if t is not None]
    weigh = torch.randn_like(want)
    grads = torch.autograd.grad(want, tensors, weigh)
    for backend in ("auto", *NEIGHBOURHOOD.forms):
        got = neighbourhood_attention(*inputs, backend=backend)
        torch.testing.assert_close(got, want)
        for mine, theirs in zip(torch.autograd.grad(got, tensors, weigh), grads, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_nothing_beyond_the_paper_is_the_papers_operator():
    q, k, v, row, col, *_ = (None if t is None else t.detach().float() for t in case()[:6])
    want = local_attention(q, k, v, row, col, HEADS, 3, "mask")
    got = neighbourhood_attention(q, k, v, row, col, None, None, HEADS, 3, 3, 1, False, "mask")
    torch.testing.assert_close(got, want)


def test_the_choice_takes_the_papers_kernels_where_they_know_the_window():
    def form(**how):
        return NEIGHBOURHOOD.choose(case(**how))

    assert form(dilation=2) == form(kh=1, kw=5, border="mask") == "relaid"
    assert form(dilation=2, seen=True) == form(causal=True) == form(table=True) == "slid"
    assert form(dilation=2, border="mask") == "slid"  # 5 columns are no 2 halves
    assert not fits(torch.zeros(1, 8, 4, 4), None, None, 3, 5, 1, False, "mask")


def test_weights_sum_to_one_or_to_nothing():
    q, k, _, *rest = case(seen=True, border="mask", causal=True)
    a = neighbourhood_weights(q, k, *rest).sum((3, 4))
    assert ((a - 1).abs().lt(1e-9) | a.eq(0)).all()
    assert a[0, :, :10].eq(0).all()


def test_opcheck_gradcheck_and_second_derivatives():
    inputs = case(table=True, seen=True, dilation=2, H=3, W=3)
    torch.library.opcheck(
        torch.ops.saccade.neighbourhood_attention.default, (*inputs, "slid", False),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )  # fmt: skip
    assert torch.autograd.gradcheck(
        lambda q, k, v: neighbourhood_attention(q, k, v, *inputs[3:]), inputs[:3], fast_mode=True
    )
    assert torch.autograd.gradgradcheck(
        lambda q: neighbourhood_attention(q, *inputs[1:]), inputs[:1], fast_mode=True
    )


def test_bad_input_is_a_sentence():
    q, k, v, row, col, *rest = case()
    for change, words in (
        ({8: 2}, "windows are odd"), ({10: 0}, "1 pixel apart"), ({7: 3}, "heads must divide"),
        ({12: "wrap"}, "border must be one of"), ({4: None}, "row and col come together"),
        ({5: torch.zeros(1, 5, 5).double()}, "table is"),
        ({6: torch.ones(2, 3, 3).double()}, "inside is B H W"),
        ({3: torch.zeros(1, 5, 2).double()}, "row is"),
    ):  # fmt: skip
        inputs = [q, k, v, row, col, *rest]
        for at, value in change.items():
            inputs[at] = value
        with pytest.raises(ValueError, match=words):
            NEIGHBOURHOOD(*inputs)


def test_flops_are_those_of_the_equation():
    inputs = case(table=True)
    shapes = [None if t is None else t.shape for t in inputs[:7]]
    pairs = math.prod(inputs[0].shape) * 9
    assert NEIGHBOURHOOD.flops(*shapes, *inputs[7:]) == 2 * 3 * pairs
