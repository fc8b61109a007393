"""Local attention in all its forms against the equation in plain loops."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import native, sasa, sasa_tiles, triton

FORMS = ("unfolded", "tiled", "shifted")
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
        assert_same(sasa.local_attention(*arguments, form=form), expected, arguments)


@settings(max_examples=25, deadline=None)
@given(
    H=st.integers(1, 20),
    W=st.integers(1, 20),
    window=st.sampled_from([3, 5, 7, 9, 11, 13, 15]),
    heads=st.sampled_from([1, 2, 3]),
    own=st.booleans(),
    border=st.sampled_from(["zero", "mask"]),
    steps=st.integers(1, 2000),
)
def test_parts_of_any_size_give_the_whole(H, W, window, heads, own, border, steps):
    """Bands of rows, groups of heads, groups of images: `steps` floats at a time."""
    options = {"tables": heads if own else 1, "border": border}
    arguments = case(3, 4 * heads, H, W, heads, window, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sasa_tiles, "LEAST", 1000 * steps)
        patch.setattr(sasa_tiles, "MOST", 1000 * steps)
        assert_same(sasa.tiled(*arguments), sasa.unfolded(*arguments), arguments)


def test_parts_cover_everything_once():
    seen = torch.zeros(5, 6, 30, 9)
    for part in sasa_tiles._parts(torch.empty(5, 6, 30, 9, 64), 7):
        seen[part.images, part.heads, part.band.top : part.band.end] += 1
        assert part.of(seen[..., None]).shape[:2] == (part.band.B, part.band.h)
    assert (seen == 1).all()


@every_form
def test_follows_the_map_when_it_moves(form):
    """Away from the border, a shifted input gives the shifted output."""
    q, k, v, row, col, heads, window, border = case(H=20, W=17, C=4, heads=1, window=5)
    attend = partial(sasa.local_attention, form=form)
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
    y = sasa.local_attention(*arguments, form=form)
    assert y.dtype == dtype
    torch.testing.assert_close(y, sasa.unfolded(*wide).to(dtype))
    y.sum().backward()
    assert all(t.grad.dtype == dtype for t in arguments[:5])


@every_form
def test_logits_beyond_half_precision(form):
    q, k, v, *rest = case(H=9, W=9, dtype=torch.float16)
    y = sasa.local_attention(q * 300, k * 300, v, *rest, form=form)
    assert y.isfinite().all()
    assert torch.autograd.grad(y.sum(), q)[0].isfinite().all()


@every_form
def test_autocast_does_not_reach_inside(form):
    arguments = case(H=9, W=9, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = sasa.local_attention(*arguments, form=form)
    assert_same(y, sasa.local_attention(*arguments, form=form), arguments, identical)


# -- the operator as torch sees it ----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"border": "mask", "tables": 0}, {"content": False}])
def test_gradcheck(options):
    arguments = case(C=2, H=2, W=9, heads=1, **options)
    assert torch.autograd.gradcheck(sasa.tiled, arguments)


@pytest.mark.parametrize("options", [{}, {"content": False}, {"tables": 0, "border": "mask"}])
def test_the_operator_keeps_its_promises(options):
    op = torch.ops.saccade.sasa_tiled.default
    arguments = case(B=2, H=9, dtype=torch.float32, **options)
    torch.library.opcheck(op, arguments)
    strided = [
        t.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        if isinstance(t, torch.Tensor) and t.ndim == 4 else t
        for t in arguments
    ]  # fmt: skip
    torch.library.opcheck(op, tuple(strided))
    assert op(*strided).is_contiguous(memory_format=torch.channels_last)


def test_flops_are_those_of_the_equation():
    def count(form, **options):
        arguments = case(B=2, C=16, H=9, W=10, window=7, dtype=torch.float32, **options)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            sasa.local_attention(*arguments, form=form)
        return counter.get_total_flops()

    term = 2 * (2 * 16 * 9 * 10) * 49  # of q.k, of q.r, of the weighted sum
    for options, terms in (({}, 3), ({"content": False}, 2), ({"tables": 0}, 2)):
        assert count("unfolded", **options) == terms * term
        assert count("tiled", **options) == terms * term


def test_compiles_without_a_break_for_any_size(untyped):
    compiled = torch.compile(sasa.local_attention, fullgraph=True, backend="aot_eager")
    for H, W in ((9, 8), (12, 13), (5, 21)):
        arguments = case(H=H, W=W, dtype=torch.float32)
        y, z = compiled(*arguments), sasa.local_attention(*arguments)
        assert_same(y, z, arguments, identical)


# -- memory ---------------------------------------------------------------------------------------


def peak(function):
    """Bytes that a call holds at most, beyond what was there before it."""
    function()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        kept = function()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del kept
    return most


@pytest.mark.parametrize(("B", "C", "side"), [(1, 64, 56), (2, 128, 28), (2, 256, 14)])
def test_memory_is_bounded_by_input_and_output(B, C, side):
    arguments = case(B, C, side, side, 8, 7, dtype=torch.float32)
    q, g = arguments[0], torch.randn(B, C, side, side)
    size = q.numel() * q.element_size()
    with torch.no_grad():
        forward = peak(lambda: sasa.tiled(*arguments))
        windows = peak(lambda: sasa.unfolded(*arguments)) if side < 56 else None
    both = peak(lambda: gradients(sasa.tiled(*arguments), arguments, g))
    # q, k, v in, y out: 4 sizes. Going back also g in, and the gradients of q, k, v out.
    assert 3 * size + forward <= 3 * 4 * size
    assert 3 * size + forward <= 6 * size  # 3 x (x + y) of the layer, its q, k, v included
    assert 4 * size + both <= 12 * size
    assert windows is None or windows > 100 * size  # the measure sees what it is to see


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window": 4}, "window must be odd, got window=4; try 5"),
        ({"window": -1}, "window must be odd"),
        ({"heads": 3}, "heads must divide the channels, got C=8 heads=3"),
        ({"border": "reflect"}, r"border must be one of \('zero', 'mask'\), got border='reflect'"),
        ({"form": "fast"}, "form must be one of"),
        ({"heads": 8}, "head width 1"),
        ({"row": None}, "row and col come together"),
        ({"window": 5}, r"row must be \(1 or 2, 5, 2\), got \(1, 3, 2\)"),
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
        ({"content": False, "position": False}, "tiled"),
    ],
)  # fmt: skip
def test_each_device_has_its_form(monkeypatch, change, form):
    """Fake tensors: the choice looks at device, dtype and shape alone, and needs no GPU."""
    pytest.importorskip("triton")
    call = {"device": "cuda", "dtype": torch.float32, "C": 16, "heads": 2, "window": 7}
    call |= {"content": True, "position": True, "triton": True, "native": True} | change
    monkeypatch.setattr(triton, "available", lambda: call["triton"])
    monkeypatch.setattr(native, "available", lambda: call["native"])
    with FakeTensorMode():
        q = torch.empty(1, call["C"], 9, 9, device=call["device"], dtype=call["dtype"])
        row = torch.empty(1, call["window"], 4, device=call["device"])
    k, row = q if call["content"] else None, row if call["position"] else None
    assert sasa._best(q, k, q, row, call["heads"], call["window"]) == form
