import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import native
from saccade.ops.native.linglo import means, means_backward, summary, supports
from tests.ops.native.oracle import gradients, relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())


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


def test_opcheck():
    (x, ask), g = example(B=1, N=5, C=8)
    leaves = x.requires_grad_(), ask.requires_grad_()
    torch.library.opcheck(torch.ops.saccade.summary.default, leaves)
    x, ask = x.detach(), ask.detach()
    kept = torch.ops.saccade.summary(x, ask)
    torch.library.opcheck(torch.ops.saccade.summary_backward.default, (g[:1], x, ask, *kept))


@pytest.mark.parametrize("heads", [1, 2])
def test_gradient_is_added_to_what_is_there(heads):
    (x, ask), g = example(N=37, C=12)
    ask, g = ask[:heads], g[:, :heads]
    alone, onto = torch.empty_like(x), torch.ones_like(x)
    kept = means(x, ask)
    first = means_backward(g, x, ask, *kept, alone, add=False)
    second = means_backward(g, x, ask, *kept, onto, add=True)
    assert torch.equal(first, second)
    torch.testing.assert_close(onto, alone + 1)


def test_second_derivatives_are_those_of_the_equation():
    tensors, g = example(N=9, C=8)
    leaves = [t.requires_grad_() for t in tensors]

    def twice(f, leaves, g):
        once = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in once), leaves)

    exact = [t.detach().double().requires_grad_() for t in tensors]
    for got, want in zip(twice(summary, leaves, g), twice(plain, exact, g.double()), strict=True):
        assert relative(got, want) < 1e-4


def test_takes_fp32_outside_autocast_only():
    x = torch.zeros(1, 2, 4)
    assert supports(x)
    assert not supports(x.double())
    assert not supports(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not supports(x)


def test_flops_are_two_products_per_head():
    (x, ask), g = example()
    one = 2 * x.numel() * len(ask)
    with FlopCounterMode(display=False) as counter:
        summary(x.requires_grad_(), ask).backward(g)
    assert counter.get_total_flops() == 2 * one + 4 * one
