"""Local attention in tiles: parts of any size, and the memory that they hold."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from saccade.ops import sasa
from saccade.ops.plain import sasa as tiles
from tests.ops.test_sasa import assert_same, case, gradients

tiled = partial(sasa.local_attention, backend="tiled")


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
        patch.setattr(tiles, "LEAST", 1000 * steps)
        patch.setattr(tiles, "MOST", 1000 * steps)
        assert_same(tiled(*arguments), sasa.unfolded(*arguments), arguments)


def test_parts_cover_everything_once():
    seen = torch.zeros(5, 6, 30, 9)
    for part in tiles._parts(torch.empty(5, 6, 30, 9, 64), 7):
        seen[part.images, part.heads, part.band.top : part.band.end] += 1
        assert part.of(seen[..., None]).shape[:2] == (part.band.B, part.band.h)
    assert (seen == 1).all()


# -- the operator as torch sees it ----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"border": "mask", "tables": 0}, {"content": False}])
def test_gradcheck(options):
    arguments = case(C=2, H=2, W=9, heads=1, **options)
    assert torch.autograd.gradcheck(tiled, arguments)


@pytest.mark.parametrize("options", [{}, {"content": False}, {"tables": 0, "border": "mask"}])
def test_the_operator_keeps_its_promises(options):
    op = torch.ops.saccade.local_attention.default
    arguments = case(B=2, H=9, dtype=torch.float32, **options)
    torch.library.opcheck(op, (*arguments, "tiled", True))
    strided = [
        t.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        if isinstance(t, torch.Tensor) and t.ndim == 4 else t
        for t in arguments
    ]  # fmt: skip
    torch.library.opcheck(op, (*strided, "tiled", True))
    assert tiled(*strided).is_contiguous(memory_format=torch.channels_last)


# -- memory ---------------------------------------------------------------------------------------


def peak(function):
    """Bytes that a call holds at most, beyond what was there before it."""
    function()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = function()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del result
    return most


@pytest.mark.parametrize(("B", "C", "side"), [(1, 64, 56), (2, 128, 28), (2, 256, 14)])
def test_memory_is_bounded_by_input_and_output(B, C, side):
    arguments = case(B, C, side, side, 8, 7, dtype=torch.float32)
    q, g = arguments[0], torch.randn(B, C, side, side)
    size = q.numel() * q.element_size()
    with torch.no_grad():
        forward = peak(lambda: tiled(*arguments))
        windows = peak(lambda: sasa.unfolded(*arguments)) if side < 56 else None
    both = peak(lambda: gradients(tiled(*arguments), arguments, g))
    # q, k, v in, y out: 4 sizes. Going back also g in, and the gradients of q, k, v out.
    assert 3 * size + forward <= 3 * 4 * size
    assert 3 * size + forward <= 6 * size  # 3 x (x + y) of the layer, its q, k, v included
    assert 4 * size + both <= 12 * size
    assert windows is None or windows > 100 * size  # the measure sees what it is to see


@settings(max_examples=25, deadline=None)
@given(
    H=st.integers(1, 14),
    W=st.integers(1, 14),
    window=st.sampled_from([1, 3, 5, 7, 11]),
    tables=st.sampled_from([0, 1, 2]),
    content=st.booleans(),
    border=st.sampled_from(["zero", "mask"]),
)
def test_blocks_of_any_map(H, W, window, tables, content, border):
    arguments = case(2, 8, H, W, 2, window, tables, border, content)
    assert_same(
        sasa.local_attention(*arguments, backend="blocked"), sasa.unfolded(*arguments), arguments
    )
