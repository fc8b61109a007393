"""The stem as one operator: the plain form is its oracle, in double precision."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from saccade.bench import peak_memory
from saccade.layers.sasa_stem import AttentionStem
from saccade.ops import native, sasa_block
from saccade.ops.operator import use_backend
from tests.ops.native.oracle import gradients, relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())

attend_blocks = partial(sasa_block.attend, backend="native")
maximum_of_blocks = partial(sasa_block.maximum_of_blocks, backend="native")
plain = partial(sasa_block.attend, backend="composed")

SHAPES = [  # B C D heads H W positions
    (2, 3, 64, 4, 8, 8, True), (1, 3, 32, 2, 9, 13, True), (2, 1, 16, 1, 5, 3, False),
    (1, 8, 64, 2, 6, 7, True), (1, 3, 96, 2, 1, 1, True), (3, 4, 16, 1, 40, 4, True),
    (1, 20, 32, 2, 6, 7, True), (1, 20, 16, 1, 8, 4, False),  # more channels than a head is wide
]  # fmt: skip


def example(B=2, C=3, D=32, heads=2, H=9, W=13, positions=True):
    torch.manual_seed(0)
    half = D // heads // 2
    row, col = (torch.randn(7, half) * 0.5 if positions else None for _ in range(2))
    scale = min(1, (3 / C) ** 0.5)  # logits of hundreds would be compared for their rounding
    matrices = (scale * torch.randn(*n, D, C) for n in ((), (), (16,)))
    tensors = torch.randn(B, C, H, W), *matrices, row, col
    return tensors, torch.randn(B, D, H, W), heads


def exact(tensors):
    return [None if t is None else t.double() for t in tensors]


def by(form, heads, mask=False):
    return lambda *tensors: form(*tensors, heads, mask)


def compare(tensors, g, heads, mask):
    y, dy = gradients(by(attend_blocks, heads, mask), tensors, g)
    want, dwant = gradients(by(plain, heads, mask), exact(tensors), g.double())
    assert relative(y, want) <= 1e-5
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected) <= 1e-5


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_equation(shape, mask):
    compare(*example(*shape), mask)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", native.INSTRUCTION_SETS)
def test_every_instruction_set(name, mask):
    try:
        native.use(name)
    except ValueError:
        pytest.skip(f"this machine has no {name}")
    try:
        compare(*example(), mask)
    finally:
        native.use("")


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_maximum_of_blocks(shape, mask):
    tensors, _, heads = example(*shape)
    scale, shift = torch.randn(2, tensors[1].shape[0])  # of either sign
    y = plain(*exact(tensors), heads, mask) * scale.double()[:, None, None]
    want = F.max_pool2d(y + shift.double()[:, None, None], 4, ceil_mode=True)
    got = maximum_of_blocks(*tensors, scale, shift, heads, mask)
    assert got.shape == want.shape
    assert relative(got, want) <= 1e-5


def test_threads_and_runs_agree_bit_for_bit():
    tensors, g, heads = example(H=50, W=37)
    threads, runs = torch.get_num_threads(), []
    try:
        for n in (1, 2, 2, 3):
            torch.set_num_threads(n)
            y, dy = gradients(by(attend_blocks, heads), tensors, g)
            runs.append([y, *dy])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(map(torch.equal, runs[0], other))


def test_nan_stays_in_its_block():
    tensors, _, heads = example()
    clean = attend_blocks(*tensors, heads, False)
    tensors[0][1, 2, 5, 9] = torch.nan
    y = attend_blocks(*tensors, heads, False)
    seen = torch.zeros(y.shape, dtype=torch.bool)
    seen[1, :, 4:8, 8:12] = True
    assert y[seen].isnan().all()
    assert torch.equal(y[~seen], clean[~seen])
    ones = torch.ones(32)
    pooled = maximum_of_blocks(*tensors, ones, ones, heads, False)
    assert pooled.isnan().sum() == pooled[1, :, 1, 2].isnan().sum() == 32


def test_the_maximum_keeps_a_nan_and_an_infinity():
    (x, wq, _, *others), _, heads = example(H=8, W=12)
    x[0, :, 2, 6] = 1e25  # its logit with itself is infinite, those with its neighbours are not
    tensors, ones = (x, wq, wq, *others), torch.ones(32)
    y = attend_blocks(*tensors, heads, False)
    assert y[0, :, 2, 6].isnan().all()
    assert y[0, :, 1, 5].isfinite().all()
    pooled = maximum_of_blocks(*tensors, ones, ones, heads, False)
    assert pooled.isnan().sum() == pooled[0, :, 0, 1].isnan().sum() == 32
    tensors, _, heads = example(H=8, W=12)
    y = maximum_of_blocks(*tensors, ones, ones - 1, heads, False)
    pooled = maximum_of_blocks(*tensors, 3e38 * ones, ones - 1, heads, False)
    assert pooled[y > 1.2].isposinf().all()
    assert pooled[(0 < y) & (y < 1)].isfinite().all()


def test_large_logits_are_a_maximum():
    """Softmax of thousands: neither overflow nor a window without weight."""
    tensors, _, heads = example()
    large = [t if i in (0, 3) else 60 * t for i, t in enumerate(tensors)]
    want = plain(*exact(large), heads, False)
    assert relative(attend_blocks(*large, heads, False), want) <= 1e-3


def test_any_layout_of_the_image():
    (x, *rest), g, heads = example()
    want, dwant = gradients(by(attend_blocks, heads), (x, *rest), g)
    for other in (x.to(memory_format=torch.channels_last), x.repeat_interleave(2, 3)[..., ::2]):
        y, dy = gradients(by(attend_blocks, heads), (other, *rest), g)
        assert torch.equal(y, want)
        assert all(map(torch.equal, dy, dwant))


@pytest.mark.parametrize("positions", [False, True])
def test_opcheck(positions):
    tensors, g, heads = example(H=4, W=5, positions=positions)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    forward = (*leaves, heads, True, "native", True)
    torch.library.opcheck(torch.ops.saccade.attend_blocks.default, forward)
    tensors = [None if t is None else t.detach() for t in tensors]
    expected = [t is not None for t in tensors]
    backward = (g, *tensors, heads, False, None, "native", expected)
    torch.library.opcheck(torch.ops.saccade.attend_blocks_backward.default, backward)
    ones = torch.ones(32)
    pooled = (*tensors, ones, ones, heads, False, "native", False)
    torch.library.opcheck(torch.ops.saccade.maximum_of_blocks.default, pooled)


def test_second_derivatives_are_those_of_the_equation():
    tensors, g, heads = example(B=1, H=4, W=5)

    def twice(f, leaves, g):
        once = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in once), leaves)

    leaves = [t.requires_grad_() for t in tensors]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    got = twice(by(attend_blocks, heads), leaves, g)
    want = twice(by(plain, heads), doubles, g.double())
    for one, expected in zip(got, want, strict=True):
        assert relative(one, expected) < 1e-4


def test_compiled_is_the_same(untyped):
    tensors, g, heads = example()
    want, dwant = gradients(by(attend_blocks, heads), tensors, g)
    compiled = torch.compile(by(attend_blocks, heads), backend="aot_eager", fullgraph=True)
    y, dy = gradients(compiled, tensors, g)
    torch.testing.assert_close(y, want)
    for got, expected in zip(dy, dwant, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("positions", [False, True])
def test_flops_are_those_of_the_plain_form(positions):
    tensors, _, heads = example(positions=positions)

    def counted(form, *more):
        with FlopCounterMode(display=False) as counter:
            form(*tensors, *more, heads, False)
        return counter.get_total_flops()

    with FlopCounterMode(display=False) as counter:
        sasa_block.composed(*tensors, heads, False)  # past the operator, by torch's formulas
    assert counted(attend_blocks) == counted(plain) == counter.get_total_flops()
    ones = torch.ones(32)
    assert counted(maximum_of_blocks, ones, ones) == counter.get_total_flops()


def test_nothing_is_kept_but_the_image():
    tensors, g, heads = example(H=64, W=64)
    y = 4 * g.numel()
    g = g.to(memory_format=torch.channels_last)
    assert peak_memory(lambda: gradients(by(attend_blocks, heads), tensors, g)) < 1.5 * y
    assert peak_memory(lambda: gradients(by(plain, heads), tensors, g)) > 6 * y


def test_what_does_not_fit_is_said():
    tensors, _, heads = example()
    with pytest.raises(ValueError, match="attend_blocks: wv has"):
        sasa_block.attend(*tensors, heads + 1, False)


@torch.no_grad()
@pytest.mark.parametrize("values", ["mixture", "pointwise"])
@pytest.mark.parametrize("border", ["zero", "mask"])
def test_the_stem_at_once(values, border):
    """In eval mode without gradients: norm and maximum as well."""
    stem = AttentionStem(3, 64, values=values, border=border).eval()
    for t in (stem.norm.weight, stem.norm.bias, stem.norm.running_mean):
        t.normal_()
    x = torch.randn(2, 3, 18, 21)
    y = stem(x)
    hook = stem.norm.register_forward_hook(lambda *_: None)
    step_by_step = stem(x)
    hook.remove()
    with use_backend("plain"):
        want = stem(x)
    for got in (y, step_by_step):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_stem_in_other_words_goes_the_plain_way():
    def chosen(x, w, heads, side):
        inputs = x, w, w, w.expand(side**2, -1, -1), None, None, heads, False
        return sasa_block.ATTEND_BLOCKS.choose(inputs)

    x, w = torch.randn(1, 3, 8, 8), torch.randn(64, 3)
    assert chosen(x, w, 4, 4) == "native"
    assert chosen(x, w, 4, 2) == "composed"
    assert chosen(x, w, 8, 4) == "composed"  # heads of 8 channels
    assert chosen(x.double(), w.double(), 4, 4) == "composed"
    assert chosen(x.to("meta"), w.to("meta"), 4, 4) == "composed"
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen(x, w, 4, 4) == "composed"
    assert AttentionStem(3, 64, values="conv").letters(x) is None
    stem = AttentionStem(3, 64)
    assert stem.letters(x) is not None
    stem.query.register_forward_hook(lambda *_: None)
    assert stem.letters(x) is None


@torch.no_grad()
@pytest.mark.parametrize("norm", [{"affine": False}, {"track_running_stats": False}])
def test_norms_of_other_kinds(norm):
    stem = AttentionStem(3, 64).eval()
    stem.norm = torch.nn.BatchNorm2d(64, **norm).eval()
    x = torch.randn(2, 3, 16, 20)
    want = F.max_pool2d(stem.norm(stem.attend(x)), 4)
    torch.testing.assert_close(stem(x), want)


def test_values_with_a_bias_are_called():
    stem = AttentionStem(3, 64, values="pointwise")
    x = torch.randn(1, 3, 8, 8)
    assert stem.letters(x) is not None
    stem.value = torch.nn.Conv2d(3, 64, 1)
    assert stem.letters(x) is None
