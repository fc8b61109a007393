"""The whole layer as one operator: the plain forms are its oracle, in double precision."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import linglo as ops
from saccade.ops import native
from saccade.ops.native import linear
from saccade.ops.native.linglo_layer import key_only
from tests.ops.native.oracle import gradients, relative
from tests.ops.test_linglo import letters

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())

SHAPES = [
    (2, 50, 24, 3), (1, 1, 8, 1), (3, 300, 20, 2), (2, 3136, 64, 1), (1, 2000, 150, 3),
    (5, 257, 64, 8), (2, 400, 320, 5),
]  # fmt: skip


def example(B=2, N=50, C=24, h=3):
    torch.manual_seed(0)
    return (torch.randn(B, N, C), *letters(C, h, torch.float32)), torch.randn(B, N, C)


def plain(x, *w):
    return ops.tokenwise(x, ops.Weights(*w))


def compare(B, N, C, h):
    tensors, g = example(B, N, C, h)
    y, dy = gradients(key_only, tensors, g)
    want, dwant = gradients(plain, [t.double() for t in tensors], g.double())
    assert relative(y, want) <= 1e-5
    for name, got, expected in zip(("x", *ops.Weights._fields), dy, dwant, strict=True):
        # The saliency's gradient is a small difference of large sums where it hardly matters.
        assert relative(got, expected, 1e-2 * dwant[1].abs().max()) <= 1e-5, name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equation(shape):
    compare(*shape)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_equals_the_equation_where_products_are_torchs(shape, monkeypatch):
    monkeypatch.setattr(linear, "ours", lambda: False)
    compare(*shape)


def test_collapsed_goes_this_way():
    tensors, g = example()
    y, dy = gradients(lambda x, *w: ops.collapsed(x, ops.Weights(*w)), tensors, g)
    again, dagain = gradients(key_only, tensors, g)
    assert torch.equal(y, again)
    assert all(map(torch.equal, dy, dagain))


def test_threads_and_runs_agree_bit_for_bit():
    tensors, g = example(3, 2000, 64, 2)
    threads, runs = torch.get_num_threads(), []
    try:
        for n in (1, 2, 2, 3):
            torch.set_num_threads(n)
            y, dy = gradients(key_only, tensors, g)
            runs.append([y, *dy])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(map(torch.equal, runs[0], other))


def test_nan_stays_in_its_image():
    (x, *w), g = example()
    clean = key_only(x, *w)
    x[1, 20, 3] = torch.nan
    y, (dx, *_) = gradients(key_only, (x, *w), g)
    assert torch.equal(y[0], clean[0])
    assert y[1].isnan().all()
    assert dx[0].isfinite().all()


def test_strided_tokens_and_gradients():
    (x, *w), g = example()
    want, dwant = gradients(key_only, (x, *w), g)
    wide, wide_g = (t.repeat_interleave(2, 2)[:, :, ::2] for t in (x, g))
    y, dy = gradients(key_only, (wide, *w), wide_g)
    assert torch.equal(y, want)
    assert all(map(torch.equal, dy, dwant))


def test_opcheck():
    tensors, g = example(1, 5, 8, 2)
    leaves = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.saccade.key_only.default, leaves)
    tensors = [t.detach() for t in tensors]
    _, *kept = torch.ops.saccade.key_only(*tensors)
    torch.library.opcheck(torch.ops.saccade.key_only_backward.default, (g, *tensors, *kept))


def test_second_derivatives_are_those_of_the_equation():
    tensors, g = example(N=9, C=8, h=2)

    def twice(f, leaves, g):
        once = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        total = sum(t.square().sum() for t in once)
        return torch.autograd.grad(total, leaves, materialize_grads=True)  # b2 is in no gradient

    leaves = [t.requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    for got, want in zip(twice(key_only, leaves, g), twice(plain, exact, g.double()), strict=True):
        assert relative(got, want) < 1e-4


def test_vmap_over_images():
    (x, *w), _ = example()
    w = ops.Weights(*w)
    each = torch.func.vmap(lambda one: ops.collapsed(one[None], w)[0])(x)
    torch.testing.assert_close(each, ops.collapsed(x, w))


def test_compiled_is_the_same_layer(untyped):
    (x, *w), g = example()

    def layer(x, *w):
        return ops.collapsed(x, ops.Weights(*w))

    want, dwant = gradients(layer, (x, *w), g)
    y, dy = gradients(torch.compile(layer, backend="aot_eager", fullgraph=True), (x, *w), g)
    torch.testing.assert_close(y, want)
    for got, expected in zip(dy, dwant, strict=True):
        torch.testing.assert_close(got, expected)


def test_flops_are_those_of_the_plain_form(monkeypatch):
    (x, *w), g = example()

    def counted():
        leaves = [t.detach().requires_grad_() for t in (x, *w)]
        with FlopCounterMode(display=False) as forward:
            y = ops.collapsed(leaves[0], ops.Weights(*leaves[1:]))
        with FlopCounterMode(display=False) as backward:
            y.backward(g)
        return forward.get_total_flops(), backward.get_total_flops()

    fused = counted()
    monkeypatch.setattr(ops, "supports", lambda x: False)
    assert counted() == fused
