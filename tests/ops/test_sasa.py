"""Local attention in all its forms against the equation in plain loops."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import operator, sasa

FORMS = ("unfolded", "tiled", "shifted", "blocked")
every_form = pytest.mark.parametrize("form", FORMS)
exact = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
identical = partial(torch.testing.assert_close, rtol=0, atol=0)


def loops(q, k, v, row, col, heads, window, border="zero"):
    """The equation, pixel by pixel."""
    B, C, H, W = q.shape
    d, p = C // heads, window // 2
    out = []
    for image in range(B):
        for n in range(heads):
            mine = slice(n * d, (n + 1) * d)
            for i in range(H):
                for j in range(W):
                    query = q[image, mine, i, j]
                    logits, values = [], []
                    for a in range(i - p, i + p + 1):
                        for b in range(j - p, j + p + 1):
                            inside = 0 <= a < H and 0 <= b < W
                            if border == "mask" and not inside:
                                continue
                            logit = query.new_zeros(())
                            if k is not None and inside:
                                logit = logit + query @ k[image, mine, a, b]
                            if row is not None:
                                table = n if len(row) > 1 else 0
                                r = torch.cat((row[table, a - i + p], col[table, b - j + p]))
                                logit = logit + query @ r
                            logits.append(logit)
                            values.append(v[image, mine, a, b] if inside else query * 0)
                    out.append(torch.stack(logits).softmax(0) @ torch.stack(values))
    return torch.stack(out).reshape(B, heads, H, W, d).permute(0, 1, 4, 2, 3).reshape(B, C, H, W)


def case(
    B=1,
    C=8,
    H=6,
    W=5,
    heads=2,
    window=3,
    tables=1,
    border="zero",
    content=True,
    dtype=torch.float64,
):
    """Arguments of local_attention; tables=0 for no position term."""

    def draw(*shape):
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    q, k, v = (draw(B, C, H, W) for _ in range(3))
    row, col = (draw(tables, window, C // heads // 2) if tables else None for _ in range(2))
    return q, k if content else None, v, row, col, heads, window, border


def gradients(y, arguments, g):
    """Of all tensors among the arguments; zero for one that has no part in y."""
    tensors = [t for t in arguments if isinstance(t, torch.Tensor)]
    return torch.autograd.grad(
        y, tensors, g, retain_graph=True, allow_unused=True, materialize_grads=True
    )


def assert_same(y, z, arguments, compare=exact):
    """Two results of the same arguments, and the gradients they send back."""
    compare(y, z)
    g = torch.randn_like(y)
    for one, other in zip(gradients(y, arguments, g), gradients(z, arguments, g), strict=True):
        compare(one, other)


CASES = {
    "zero": {"B": 2},
    "mask": {"border": "mask"},
    "window larger than the map": {"H": 4, "W": 5, "window": 7},
    "window far larger than the map": {"H": 2, "W": 3, "window": 15, "border": "mask"},
    "several tiles": {"H": 9, "W": 11, "window": 5, "C": 4, "heads": 1},
    "several tiles, mask": {"H": 9, "W": 10, "C": 4, "heads": 1, "border": "mask"},
    "tables per head": {"tables": 2, "window": 5},
    "no position": {"tables": 0},
    "no position, mask": {"tables": 0, "border": "mask"},
    "q.r only": {"content": False},
    "q.r only, mask, tables per head": {"content": False, "border": "mask", "tables": 2},
    "the mean of the window": {"content": False, "tables": 0, "border": "mask"},
    "a window of one": {"window": 1},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_equals_plain_loops_gradients_included(options):
    arguments = case(**options)
    expected = loops(*arguments)
    for form in FORMS:
        assert_same(sasa.local_attention(*arguments, backend=form), expected, arguments)


@every_form
def test_follows_the_map_when_it_moves(form):
    """Away from the border, a shifted input gives the shifted output."""
    q, k, v, row, col, heads, window, border = case(H=20, W=17, C=4, heads=1, window=5)
    attend = partial(sasa.local_attention, backend=form)
    y = attend(q, k, v, row, col, heads, window, border)
    moved = [t.roll((3, -2), (2, 3)) for t in (q, k, v)]
    z = attend(*moved, row, col, heads, window, border)
    inside = (slice(None), slice(None), slice(2 + 3, -2), slice(2, -2 - 2))
    exact(z[inside], y.roll((3, -2), (2, 3))[inside])


# -- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("border", ["zero", "mask"])
def test_weights_give_the_output(border):
    q, k, v, row, col, heads, window, _ = case(B=2, H=5, W=6, window=3)
    a = sasa.local_weights(q, k, row, col, heads, window, border)
    assert a.shape == (2, heads, 30, 3, 3)
    exact(a.sum((3, 4)), torch.ones(2, heads, 30, dtype=a.dtype))
    windows = sasa._windows(v, heads, window)  # B h n d kk
    y = (windows * a.flatten(3)[:, :, :, None]).sum(4).mT.reshape(q.shape)
    exact(y, sasa.local_attention(q, k, v, row, col, heads, window, border))
    some = sasa.local_weights(q, k, row, col, heads, window, border, at=[(4, 5), (0, 2)])
    exact(some, a[:, :, [29, 2]])


def test_weights_of_a_pixel_off_the_map():
    q, k, _, row, col, heads, window, _ = case()
    with pytest.raises(ValueError, match=r"6x5 pixels, got pixel \(6, 0\)"):
        sasa.local_weights(q, k, row, col, heads, window, at=[(6, 0)])


# -- precision ------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_only_rounds_what_goes_in_and_out(form, dtype):
    arguments = case(H=9, W=9, dtype=dtype)
    wide = [t.detach().float() if isinstance(t, torch.Tensor) else t for t in arguments]
    y = sasa.local_attention(*arguments, backend=form)
    assert y.dtype == dtype
    torch.testing.assert_close(y, sasa.unfolded(*wide).to(dtype))
    y.sum().backward()
    assert all(t.grad.dtype == dtype for t in arguments[:5])


@every_form
def test_logits_beyond_half_precision(form):
    q, k, v, *rest = case(H=9, W=9, dtype=torch.float16)
    y = sasa.local_attention(q * 300, k * 300, v, *rest, backend=form)
    assert y.isfinite().all()
    assert torch.autograd.grad(y.sum(), q)[0].isfinite().all()


@every_form
def test_autocast_only_rounds_what_goes_in_and_out(form):
    arguments = case(H=9, W=9, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = sasa.local_attention(*arguments, backend=form)
    rounded = (*(t.bfloat16() for t in arguments[:3]), *arguments[3:])  # tables stay as they are
    assert_same(y, sasa.local_attention(*rounded, backend=form), arguments, identical)


# -- the operator as torch sees it ----------------------------------------------------------------


def test_flops_are_those_of_the_equation():
    def count(form, **options):
        arguments = case(B=2, C=16, H=9, W=10, window=7, dtype=torch.float32, **options)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            sasa.local_attention(*arguments, backend=form)
        return counter.get_total_flops()

    term = 2 * (2 * 16 * 9 * 10) * 49  # of q.k, of q.r, of the weighted sum
    for options, terms in (({}, 3), ({"content": False}, 2), ({"tables": 0}, 2)):
        for form in FORMS:
            assert count(form, **options) == terms * term


def test_compiles_without_a_break_for_any_size(untyped):
    compiled = torch.compile(sasa.local_attention, fullgraph=True, backend="aot_eager")
    for H, W in ((9, 8), (12, 13), (5, 21)):
        arguments = case(H=H, W=W, dtype=torch.float32)
        y, z = compiled(*arguments), sasa.local_attention(*arguments)
        identical(y, z)
        tensors, g = arguments[:5], torch.randn_like(y)
        pairs = zip(
            torch.autograd.grad(y, tensors, g), torch.autograd.grad(z, tensors, g), strict=True
        )
        for one, other in pairs:
            identical(one, other)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window": 4}, "window must be odd, got window=4; try 5"),
        ({"window": -1}, "window must be odd"),
        ({"heads": 3}, "heads must divide the channels, got C=8 heads=3"),
        ({"border": "reflect"}, r"border must be one of \('zero', 'mask'\), got border='reflect'"),
        ({"backend": "fast"}, "backend must be 'auto', 'plain' or one of"),
        ({"heads": 8}, "head width 1"),
        ({"row": None}, "row and col come together"),
        ({"window": 5}, r"row and col must be \(1 or 2, 5, 2\), got \(1, 3, 2\)"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change, says):
    names = ("q", "k", "v", "row", "col", "heads", "window", "border")
    arguments = dict(zip(names, case(), strict=True))
    with pytest.raises(ValueError, match=says):
        sasa.local_attention(**{**arguments, **change})


@pytest.mark.parametrize(
    ("change", "form"),
    [
        ({}, "triton"), ({"heads": 1, "C": 256}, "tiled"), ({"window": 17}, "tiled"),
        ({"content": False}, "triton"), ({"dtype": torch.bfloat16}, "triton"),
        ({"triton": False}, "tiled"), ({"device": "cpu"}, "native"),
        ({"device": "cpu", "native": False}, "tiled"), ({"device": "meta"}, "tiled"),
        ({"device": "cpu", "dtype": torch.float16}, "tiled"),
        ({"content": False, "position": False}, "triton"),
        ({"device": "cpu", "content": False, "position": False}, "tiled"),
    ],
)  # fmt: skip
def test_each_device_has_its_form(monkeypatch, change, form):
    """Fake tensors: the choice looks at device, dtype and shape alone, and needs no GPU."""
    pytest.importorskip("triton")
    call = {"device": "cuda", "dtype": torch.float32, "C": 16, "heads": 2, "window": 7}
    call |= {"content": True, "position": True, "triton": True, "native": True} | change
    for name in ("triton", "native"):
        kernel = replace(sasa.LOCAL_ATTENTION.kernels[name], ready=partial(call.get, name))
        monkeypatch.setitem(sasa.LOCAL_ATTENTION.kernels, name, kernel)
    with FakeTensorMode():
        q = torch.empty(1, call["C"], 9, 9, device=call["device"], dtype=call["dtype"])
        row = torch.empty(1, call["window"], 4, device=call["device"])
    k, row = q if call["content"] else None, row if call["position"] else None
    monkeypatch.setattr(operator, "Tensor", FakeTensor)
    inputs = q, k, q, row, row, call["heads"], call["window"], "zero"
    assert sasa.LOCAL_ATTENTION.choose(inputs) == form
