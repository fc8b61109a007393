import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import native
from saccade.ops import sasa as ops
from tests.ops.native import oracle
from tests.ops.native.oracle import gradients, relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())

local_attention = partial(ops.local_attention, backend="native")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny operations: on a busy machine, waiting for a second thread takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def example(B=2, C=16, H=9, W=11, heads=2, window=7, dtype=torch.float32, layout="nchw",
            tables=1, content=True, position=True, seed=0):  # fmt: skip
    """q, k, v, row, col and an upstream gradient."""
    torch.manual_seed(seed)
    d = C // heads

    def image(scale):
        x = (torch.randn(B, C, H, W) * scale).to(dtype)
        if layout == "nhwc":
            return x.contiguous(memory_format=torch.channels_last)
        return x.repeat(2, 2, 1, 2)[:B, C:, :, ::2] if layout == "strided" else x

    q, k, v = image(d**-0.25), image(d**-0.25), image(1)
    row, col = ((torch.randn(tables, window, d // 2) * 0.5).to(dtype) for _ in range(2))
    tensors = q, k if content else None, v, *((row, col) if position else (None, None))
    return tensors, image(1)


def compare(tensors, g, heads, window, border):
    dtype = tensors[0].dtype

    def ours(*t):
        return local_attention(*t, heads, window, border)

    def theirs(*t):
        return oracle.local_attention(*t, heads, window, border)

    y, dy = gradients(ours, tensors, g)
    exact = [None if t is None else t.double() for t in tensors]
    want, dwant = gradients(theirs, exact, g.double())
    assert y.dtype == dtype
    assert y.stride() == torch.empty_like(tensors[0]).stride()
    assert relative(y, want) <= TOLERANCE[dtype]
    # In a window of one pixel some gradients are zero, up to the rounding of the others.
    least = 0.1 * max(t.abs().max() for t in dwant)
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected, least) <= TOLERANCE[dtype]


def draw(seed):
    """A random configuration; every switch and many awkward sizes come up."""
    r = random.Random(seed)
    heads, d = r.choice([1, 2, 3, 8]), r.choice([4, 6, 8, 10, 16, 20, 32])
    if r.random() < 0.05:
        heads, d = 1, r.choice([64, 128])
    content, position = r.choice([(True, True)] * 4 + [(True, False), (False, True)])
    if not position and r.random() < 0.5:
        d = r.choice([1, 3, 5, 13])
    shape = {
        "B": r.choice([1, 2]), "C": heads * d, "heads": heads,
        "H": r.randint(1, 14), "W": r.choice([r.randint(1, 18), r.randint(16, 40)]),
        "window": r.choice([3, 3, 5, 5, 7, 7, 7, 9, 11, 13, 15]),
        "dtype": r.choice([torch.float32] * 3 + [torch.bfloat16, torch.bfloat16, torch.float64]),
        "layout": r.choice(["nchw", "nchw", "nhwc", "nhwc", "strided"]),
        "tables": r.choice([1, heads]), "content": content, "position": position, "seed": seed,
    }  # fmt: skip
    return shape, r.choice(["zero", "mask"])


def check(seed):
    shape, border = draw(seed)
    compare(*example(**shape), shape["heads"], shape["window"], border)


@pytest.mark.parametrize("chunk", range(10))
def test_equals_the_equation(chunk):
    for seed in range(chunk * 20, chunk * 20 + 20):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_equals_the_equation_many_times(chunk):
    for seed in range(1000 + chunk * 80, 1000 + chunk * 80 + 80):
        check(seed)


@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_every_instruction_set_of_this_machine(isa, border):
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    try:
        assert native.instruction_set() == isa
        for dtype in TOLERANCE:
            for layout in ("nchw", "nhwc"):
                tensors, g = example(C=40, H=13, W=37, heads=2, dtype=dtype, layout=layout)
                compare(tensors, g, 2, 7, border)
    finally:
        native.use()


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("border", ["zero", "mask"])
def test_logits_of_any_size_have_weights(border, dtype, scale):
    """Rounded apart, the largest logit would not always be the one that is subtracted from all."""
    (q, k, v, row, col), g = example(C=16, H=9, W=21, heads=2, window=5, dtype=dtype)
    tensors = [t.detach().requires_grad_() for t in (q * scale, k, v, row, col)]
    y = ops.local_attention(*tensors, 2, 5, border, backend="native")
    want = oracle.local_attention(*(t.detach().double() for t in tensors), 2, 5, border)
    assert relative(y, want) <= max(1e-3, TOLERANCE[dtype])  # logits themselves are rounded
    of_query, of_key, *rest = torch.autograd.grad(y, tensors, g)
    assert all(gradient.isfinite().all() for gradient in rest)
    if scale >= 1e9:  # one weight is 1, the others are 0
        assert not of_query.any()
        assert not of_key.any()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize("window", range(3, 16, 2))
def test_bfloat16_equals_float32_on_the_same_numbers(window, border, layout):
    """Products of bfloat16 are exact in float32: only weights and results may be rounded."""
    for seed, d in enumerate((1, 3, 4, 5, 6, 8, 10, 13, 16, 24, 31, 32, 64, 128)):
        kinds = [(True, False)] if d % 2 else [(True, True), (True, False), (False, True)]
        content, position = kinds[seed % len(kinds)]
        tensors, g = example(
            B=1, C=2 * d if d < 64 else d, H=5 + seed % 4, W=7 + 2 * seed, heads=2 if d < 64 else 1,
            window=window, dtype=torch.bfloat16, layout=layout, tables=1, content=content,
            position=position, seed=seed,
        )  # fmt: skip
        heads = tensors[0].shape[1] // d

        def f(*t, heads=heads):
            return local_attention(*t, heads, window, border)

        y, dy = gradients(f, tensors, g)
        same = [None if t is None else t.float() for t in tensors]
        want, dwant = gradients(f, same, g.float())
        assert relative(y, want) < 6e-3
        for got, expected in zip(dy, dwant, strict=True):
            assert relative(got, expected, 0.1 * expected.abs().max()) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strips_and_bands_leave_no_seam(dtype):
    """A wide head on a large map: several strips of columns and bands of rows."""
    tensors, g = example(B=1, C=64, H=61, W=150, heads=1, window=5, dtype=dtype)
    compare(tensors, g, 1, 5, "zero")


def test_a_part_of_an_image_gives_the_same_bits():
    """How an image is cut into tasks, or how far it reaches beyond a window, changes no sum."""
    tensors, _ = example(B=1, C=8, H=64, W=48, heads=1, window=5, dtype=torch.bfloat16)
    whole = local_attention(*tensors, 1, 5, "zero")
    part = [t[:, :, :34, :24].contiguous() if t.ndim == 4 else t for t in tensors]
    assert torch.equal(local_attention(*part, 1, 5, "zero")[:, :, :32, :22], whole[:, :, :32, :22])


@pytest.mark.parametrize("name", ["local_k7_zero", "local_k7_mask", "local_k3_zero"])
def test_golden(shared, name):
    d = dict(np.load(shared / "golden" / "sasa" / f"{name}.npz").items())
    x, g = torch.from_numpy(d["x"]).requires_grad_(), torch.from_numpy(d["g"])
    w = [torch.from_numpy(d[k]).requires_grad_() for k in ("wq", "wk", "wv")]
    rel = [torch.from_numpy(d[k]).requires_grad_() for k in ("rel_row", "rel_col")]
    q, k, v = (F.conv2d(x, m[..., None, None]) for m in w)
    y = local_attention(q, k, v, *rel, int(d["heads"]), int(d["k"]), str(d["border"]))
    assert relative(y, torch.from_numpy(d["y"])) < 1e-12
    names = ("gx", "gwq", "gwk", "gwv", "grel_row", "grel_col")
    for key, got in zip(names, torch.autograd.grad(y, [x, *w, *rel], g), strict=True):
        assert relative(got, torch.from_numpy(d[key])) < 1e-12


@pytest.mark.parametrize("border", ["zero", "mask"])
def test_gradcheck(border):
    tensors, _ = example(B=1, C=8, H=4, W=5, heads=2, window=5, dtype=torch.float64, tables=2)
    leaves = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *t: local_attention(*t, 2, 5, border), leaves)


@pytest.mark.parametrize(("content", "position"), [(True, True), (True, False), (False, True)])
def test_opcheck(content, position):
    tensors, _ = example(content=content, position=position)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    options, how = (2, 7, "zero"), ("native", True)
    torch.library.opcheck(torch.ops.saccade.local_attention.default, (*leaves, *options, *how))
    g = torch.randn_like(tensors[0])
    plain = [None if t is None else t.detach() for t in tensors]
    _, residuals = torch.ops.saccade.local_attention(*plain, *options, *how)
    expected = [t is not None for t in plain]
    back = g, *plain, *options, None, residuals, "native", expected
    torch.library.opcheck(torch.ops.saccade.local_attention_backward.default, back)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("y0", [5, 6])
def test_nan_reaches_only_its_window(y0, dtype, which, border, layout):
    tensors, g = example(H=12, W=21, window=5, layout=layout, dtype=dtype)
    clean, dclean = gradients(lambda *t: local_attention(*t, 2, 5, border), tensors, g)
    spoilt = [t.clone() for t in tensors]
    spoilt[which][0, 3, y0, 19] = torch.nan
    y, dy = gradients(lambda *t: local_attention(*t, 2, 5, border), spoilt, g)
    sees = torch.zeros(2, 16, 12, 21, dtype=torch.bool)
    sees[0, :8, y0 - 2 : y0 + 3, 17:] = True  # head 0 owns the channel; the window reaches 2 pixels
    if which == 0:  # a query spoils itself only
        sees = torch.zeros_like(sees)
        sees[0, :8, y0, 19] = True
    assert torch.equal(y[~sees], clean[~sees])
    assert y[0, 3, y0, 19].isnan()
    reach = torch.zeros_like(sees)
    reach[0, :8, y0 - 4 : y0 + 5, 15:] = True
    for got, want in zip(dy[:3], dclean[:3], strict=True):
        assert torch.equal(got[~reach], want[~reach])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("y0", [5, 6])
def test_nan_in_a_gradient_reaches_only_its_window(y0, dtype):
    tensors, g = example(H=12, W=21, window=5, dtype=dtype)
    _, clean = gradients(lambda *t: local_attention(*t, 2, 5, "zero"), tensors, g)
    g[0, 3, y0, 9] = torch.nan
    _, spoilt = gradients(lambda *t: local_attention(*t, 2, 5, "zero"), tensors, g)
    reach = torch.zeros(2, 16, 12, 21, dtype=torch.bool)
    reach[0, :8, y0 - 2 : y0 + 3, 7:12] = True
    for got, want in zip(spoilt[:3], clean[:3], strict=True):
        assert torch.equal(got[~reach], want[~reach])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_and_runs_agree_bit_for_bit(dtype):
    tensors, g = example(B=1, C=32, H=50, W=40, heads=2, dtype=dtype)
    runs = []
    for n in (1, 2, 2, 5):
        torch.set_num_threads(n)
        y, dy = gradients(lambda *t: local_attention(*t, 2, 7, "zero"), tensors, g)
        runs.append([y, *dy])
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("border", ["zero", "mask"])
def test_extreme_scores_stay_finite(border):
    tensors, g = example(window=5)
    for sign in (1, -1):
        scaled = [tensors[0] * 1e2, tensors[1] * 1e2 * sign, *tensors[2:]]
        y, dy = gradients(lambda *t: local_attention(*t, 2, 5, border), scaled, g)
        assert all(t.isfinite().all() for t in (y, *dy))
        exact = oracle.local_attention(*(t.double() for t in scaled), 2, 5, border)
        assert relative(y, exact) < 1e-2  # scores of 1e4 carry 1e-3 of rounding themselves


def test_denormals_survive_a_call():
    tensors, _ = example()
    local_attention(*tensors, 2, 7, "zero")
    tiny = torch.full((4,), 1e-40)
    assert (tiny * 0.5 > 0).all()


@pytest.mark.slow
def test_compiles_whole(untyped):
    tensors, g = example()

    def f(*t):
        return local_attention(*t, 2, 7, "zero").relu()

    want, dwant = gradients(f, tensors, g)
    got, dgot = gradients(torch.compile(f, fullgraph=True), tensors, g)
    assert torch.equal(got, want)
    assert all(torch.equal(a, b) for a, b in zip(dgot, dwant, strict=True))


def test_autocast_computes_in_bfloat16():
    tensors, _ = example()
    with torch.autocast("cpu", torch.bfloat16):
        y = local_attention(*tensors, 2, 7, "zero")
    assert y.dtype == torch.bfloat16
    assert relative(y, local_attention(*tensors, 2, 7, "zero").double()) < 5e-2


def test_flops_are_those_of_the_equation():
    (q, k, v, row, col), g = example()
    one = 2 * q.numel() * 49
    with FlopCounterMode(display=False) as counter:
        local_attention(q.requires_grad_(), k, v, row, col, 2, 7, "zero").backward(g)
    assert counter.get_total_flops() == 3 * one + 6 * one
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        x = torch.empty_like(q, device="meta")
        ops.local_attention(x, x, x, None, None, 2, 7, "zero")
    assert counter.get_total_flops() == 2 * one


@pytest.mark.parametrize(("change", "message"), [
    ({"heads": 3}, "heads must divide"),
    ({"window": 4}, "window must be odd"),
    ({"window": 17, "row": None, "col": None}, "windows of 3 to 15"),
    ({"border": "wrap"}, "border must be"),
    ({"row": None}, "come together"),
    ({"k": None, "row": None, "col": None}, "k or positions"),
    ({"row": torch.zeros(1, 5, 4)}, "row is r k half, col is r k half"),
    ({"k": torch.zeros(2, 16, 9, 10)}, "k is B C H W"),
])  # fmt: skip
def test_refuses_with_the_cure(untyped, change, message):
    tensors, _ = example()
    keys = ("q", "k", "v", "row", "col")
    call = dict(zip(keys, tensors, strict=True)) | {"heads": 2, "window": 7, "border": "zero"}
    with pytest.raises(ValueError, match=message):
        local_attention(**call | change)
