"""The means of the tokens, and the whole layer: plain forms are the oracle, in double precision."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import linglo as ops
from saccade.ops import native
from saccade.ops.native import linear
from saccade.ops.native import linglo as kernel
from tests.ops.native.oracle import gradients, relative
from tests.ops.test_linglo import letters

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())


# -- the means ------------------------------------------------------------------------------------


class _Summary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ask):
        x = x.contiguous()
        mean, lse = x.new_empty(len(x), *ask.shape), x.new_empty(len(x), len(ask))
        kernel._means(x, ask, mean, lse)
        ctx.save_for_backward(x, ask, mean, lse)
        return mean

    @staticmethod
    def backward(ctx, g):
        dx = torch.empty_like(ctx.saved_tensors[0])
        return dx, kernel._means_backward(g, *ctx.saved_tensors, dx, add=False)


def summary(x, ask):
    """The kernel that reads the tokens, by itself."""
    return _Summary.apply(x, ask)


def plain(x, ask):
    return (ask @ x.mT).softmax(-1) @ x


def example(B=2, N=50, C=24, heads=3, spread=1.0):
    torch.manual_seed(0)
    ask = torch.randn(heads, C) * spread * C**-0.5
    return (torch.randn(B, N, C), ask), torch.randn(B, heads, C)


SHAPES = [
    {}, {"N": 1}, {"N": 7, "C": 5, "heads": 1}, {"B": 1, "N": 3136, "C": 64, "heads": 1},
    {"N": 785, "C": 30, "heads": 5}, {"N": 2000, "C": 150, "heads": 3},
    {"B": 3, "C": 512, "heads": 8}, {"N": 900, "spread": 30.0}, {"N": 130, "C": 108, "heads": 2},
]  # fmt: skip


def compare(**shape):
    tensors, g = example(**shape)
    y, dy = gradients(summary, tensors, g)
    want, dwant = gradients(plain, [t.double() for t in tensors], g.double())
    # Logits of size 30 carry 30 times the rounding of logits of size 1.
    bound = 1e-5 * max(1.0, shape.get("spread", 1.0))
    assert relative(y, want) <= bound
    least = 0.1 * max(t.abs().max() for t in dwant)
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected, least) <= bound


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equation(shape):
    compare(**shape)


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_every_instruction_set_of_this_machine(isa):
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    try:
        compare(N=785, C=30, heads=5)
    finally:
        native.use()


def test_logits_of_any_height():
    """The largest logit comes last, far above; and a shift of all of them changes nothing."""
    (x, ask), _ = example(N=2000)
    x = x + torch.linspace(0, 500, 2000)[:, None] * ask[0] / ask[0].square().sum()
    y = summary(x, ask)
    assert relative(y, plain(x.double(), ask.double())) < 1e-4
    assert y.isfinite().all()


@pytest.mark.parametrize("spread", [100.0, 400.0, 3000.0])
def test_gradients_of_one_share_that_is_all_are_as_small_as_they_are(spread):
    """No larger error than that of the equation in float32, though gradients nearly vanish."""
    for seed in range(4):
        torch.manual_seed(seed)
        tensors, g = (
            (torch.randn(2, 60, 16), torch.randn(2, 16) * spread / 4),
            torch.randn(2, 2, 16),
        )
        _, exact = gradients(plain, [t.double() for t in tensors], g.double())
        _, theirs = gradients(plain, tensors, g)
        _, ours = gradients(summary, tensors, g)
        for got, expected, other in zip(ours, exact, theirs, strict=True):
            assert relative(got, expected) <= 4 * relative(other, expected) + 1e-6


def test_threads_and_runs_agree_bit_for_bit():
    tensors, g = example(N=4000)
    threads, runs = torch.get_num_threads(), []
    try:
        for n in (1, 2, 2, 5):
            torch.set_num_threads(n)
            y, dy = gradients(summary, tensors, g)
            runs.append([y, *dy])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_nan_stays_in_its_image():
    (x, ask), _ = example()
    clean = summary(x, ask)
    x[1, 20, 3] = torch.nan
    y = summary(x, ask)
    assert torch.equal(y[0], clean[0])
    assert y[1].isnan().all()


def test_strided_tokens():
    (x, ask), _ = example()
    wide = x.repeat_interleave(2, 2)[:, :, ::2]
    assert torch.equal(summary(wide, ask), summary(x, ask))


@pytest.mark.parametrize("heads", [1, 2])
def test_gradient_is_added_to_what_is_there(heads):
    (x, ask), g = example(N=37, C=12)
    ask, g = ask[:heads], g[:, :heads].contiguous()
    alone, onto = torch.empty_like(x), torch.ones_like(x)
    mean, lse = x.new_empty(2, heads, 12), x.new_empty(2, heads)
    kernel._means(x, ask, mean, lse)
    first = kernel._means_backward(g, x, ask, mean, lse, alone, add=False)
    second = kernel._means_backward(g, x, ask, mean, lse, onto, add=True)
    assert torch.equal(first, second)
    torch.testing.assert_close(onto, alone + 1)


# -- the layer ------------------------------------------------------------------------------------


LAYERS = [
    (2, 50, 24, 3), (1, 1, 8, 1), (3, 300, 20, 2), (2, 3136, 64, 1), (1, 2000, 150, 3),
    (5, 257, 64, 8), (2, 400, 320, 5),
]  # fmt: skip


def layer_example(B=2, N=50, C=24, h=3):
    torch.manual_seed(0)
    return (torch.randn(B, N, C), *letters(C, h, torch.float32)), torch.randn(B, N, C)


def key_only(x, *w):
    return ops.key_only(x, ops.Weights(*w), backend="native")


def tokenwise(x, *w):
    return ops.tokenwise(x, ops.Weights(*w))


def compare_layer(B, N, C, h):
    tensors, g = layer_example(B, N, C, h)
    y, dy = gradients(key_only, tensors, g)
    want, dwant = gradients(tokenwise, [t.double() for t in tensors], g.double())
    assert relative(y, want) <= 1e-5
    for name, got, expected in zip(("x", *ops.Weights._fields), dy, dwant, strict=True):
        # The saliency's gradient is a small difference of large sums where it hardly matters.
        assert relative(got, expected, 1e-2 * dwant[1].abs().max()) <= 1e-5, name


@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_the_layer_equals_the_equation(shape):
    compare_layer(*shape)


@pytest.mark.parametrize("shape", LAYERS[:3], ids=str)
def test_equals_the_equation_where_products_are_torchs(shape, monkeypatch):
    monkeypatch.setattr(linear, "pays", lambda: False)
    compare_layer(*shape)


def test_the_layer_goes_this_way():
    tensors, g = layer_example()
    y, dy = gradients(lambda x, *w: ops.key_only(x, ops.Weights(*w)), tensors, g)
    again, dagain = gradients(key_only, tensors, g)
    assert torch.equal(y, again)
    assert all(map(torch.equal, dy, dagain))


def test_the_layer_threads_and_runs_agree_bit_for_bit():
    tensors, g = layer_example(3, 2000, 64, 2)
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


def test_the_layer_nan_stays_in_its_image():
    (x, *w), g = layer_example()
    clean = key_only(x, *w)
    x[1, 20, 3] = torch.nan
    y, (dx, *_) = gradients(key_only, (x, *w), g)
    assert torch.equal(y[0], clean[0])
    assert y[1].isnan().all()
    assert dx[0].isfinite().all()


def test_strided_tokens_and_gradients():
    (x, *w), g = layer_example()
    want, dwant = gradients(key_only, (x, *w), g)
    wide, wide_g = (t.repeat_interleave(2, 2)[:, :, ::2] for t in (x, g))
    y, dy = gradients(key_only, (wide, *w), wide_g)
    assert torch.equal(y, want)
    assert all(map(torch.equal, dy, dwant))


def test_the_layer_opcheck():
    tensors, g = layer_example(1, 5, 8, 2)
    leaves = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.saccade.key_only.default, (*leaves, "native", True))
    tensors = [t.detach() for t in tensors]
    _, *residuals = torch.ops.saccade.key_only(*tensors, "native", True)
    backward = (g, *tensors, None, *residuals, "native", [True] * 10)
    torch.library.opcheck(torch.ops.saccade.key_only_backward.default, backward)


def test_the_layer_second_derivatives_are_those_of_the_equation():
    tensors, g = layer_example(N=9, C=8, h=2)

    def twice(f, leaves, g):
        once = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        total = sum(t.square().sum() for t in once)
        return torch.autograd.grad(total, leaves, materialize_grads=True)  # b2 is in no gradient

    leaves = [t.requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    for got, want in zip(
        twice(key_only, leaves, g), twice(tokenwise, exact, g.double()), strict=True
    ):
        assert relative(got, want) < 1e-4


def test_vmap_over_images():
    (x, *w), _ = layer_example()
    w = ops.Weights(*w)
    each = torch.func.vmap(lambda one: ops.key_only(one[None], w)[0])(x)
    torch.testing.assert_close(each, ops.key_only(x, w))
    each = torch.func.vmap(lambda one: key_only(one[None], *w)[0])(x)
    torch.testing.assert_close(each, ops.key_only(x, w))


def test_compiled_is_the_same_layer(untyped):
    (x, *w), g = layer_example()

    def layer(x, *w):
        return ops.key_only(x, ops.Weights(*w))

    want, dwant = gradients(layer, (x, *w), g)
    y, dy = gradients(torch.compile(layer, backend="aot_eager", fullgraph=True), (x, *w), g)
    torch.testing.assert_close(y, want)
    for got, expected in zip(dy, dwant, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", ops.KEY_ONLY.forms)
def test_flops_of_the_layer_are_those_of_the_equation(backend):
    """Four products with the tokens, the logits, and a sum for every head, in whatever form."""
    (x, *w), g = layer_example()
    leaves = [t.detach().requires_grad_() for t in (x, *w)]
    with FlopCounterMode(display=False) as forward:
        y = ops.key_only(leaves[0], ops.Weights(*leaves[1:]), backend)
    with FlopCounterMode(display=False) as backward:
        y.backward(g)
    one = 2 * (2 * 50 * 24) * (4 * 24 + 3 + 1)
    assert (forward.get_total_flops(), backward.get_total_flops()) == (one, 2 * one)
