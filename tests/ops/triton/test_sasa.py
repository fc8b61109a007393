"""Local attention in Triton's interpreter: the equation, gradients, contracts."""

import pytest
import torch
from torch.nn import functional as F

from tests.ops.triton.check import compare, gradients, label


def plain(q, k, v, row, col, heads, window, border):
    """The equation, offset by offset; what lies outside is padded, then masked or not."""
    B, C, H, W = q.shape
    P = window // 2
    split = (B, heads, C // heads)
    q = q.reshape(*split, H, W)
    inside = F.pad(torch.ones(H, W, dtype=torch.bool), [P] * 4)
    k, v = (None if t is None else F.pad(t, [P] * 4).reshape(*split, H + 2 * P, -1) for t in (k, v))
    logits, values = [], []
    for a in range(window):
        for b in range(window):
            here = ..., slice(a, a + H), slice(b, b + W)
            s = torch.zeros_like(q[:, :, 0]) if k is None else (q * k[here]).sum(2)
            if row is not None:
                r = torch.cat([row[:, a], col[:, b]], -1)  # tables d
                s = s + (q * r[None, :, :, None, None]).sum(2)
            if border == "mask":
                s = s.masked_fill(~inside[here], -torch.inf)
            logits.append(s)
            values.append(v[here])
    p = torch.stack(logits, -1).softmax(-1)
    return sum(p[..., j, None].movedim(-1, 2) * x for j, x in enumerate(values)).reshape(B, C, H, W)


def local_attention(*call, **options):
    from saccade.ops import sasa

    return sasa.local_attention(*call, **options, backend="triton")


def example(B=1, heads=2, d=4, H=3, W=5, window=3, tables=1, content=True, position=True,
            layout="nchw", dtype=torch.float32):  # fmt: skip
    """q, k, v, row, col and an upstream gradient."""
    torch.manual_seed(0)

    def image(scale):
        x = (torch.randn(B, heads * d, H, W) * scale).to(dtype)
        if layout == "nhwc":
            return x.contiguous(memory_format=torch.channels_last)
        return x.repeat(1, 2, 1, 2)[:, heads * d :, :, ::2] if layout == "strided" else x

    q, k, v = image(d**-0.25), image(d**-0.25), image(1)
    row, col = ((torch.randn(tables, window, d // 2) * 0.5).to(dtype) for _ in range(2))
    tensors = q, k if content else None, v, *((row, col) if position else (None, None))
    return tensors, image(1)


def check_equation(border, heads, window, **shape):

    tensors, g = example(heads=heads, window=window, **shape)

    def run(f):
        return lambda *t: f(*t, heads, window, border)

    y, *_ = compare(run(local_attention), run(plain), tensors, g)
    if shape.get("layout") != "strided":
        assert y.stride() == tensors[0].stride()


CASES = [
    {"heads": 2, "tables": 2, "d": 6, "layout": "nhwc", "border": "mask"},
    {"content": False, "layout": "strided", "border": "zero"},
    {"H": 13, "W": 11, "border": "zero"},  # two programs
    {"H": 1, "W": 9, "position": False, "d": 5, "border": "mask"},
    {"H": 2, "W": 3, "dtype": torch.bfloat16, "d": 16, "layout": "nhwc", "border": "zero"},
    {"H": 2, "W": 2, "dtype": torch.float16, "d": 8, "border": "mask"},
]
MORE_CASES = [
    {"B": 2, "heads": 2, "tables": 2, "d": 6, "layout": "nhwc", "border": "mask"},
    {"layout": "strided", "border": "zero"},
    {"H": 2, "W": 3, "window": 5, "border": "mask"},
    {"H": 1, "W": 1, "border": "zero"},
    {"H": 3, "W": 4, "d": 128, "layout": "nhwc", "border": "mask"},  # two programs
    {"content": False, "layout": "nhwc", "border": "zero"},
    {"position": False, "d": 5, "border": "mask"},
    {"content": False, "position": False, "border": "mask"},
    {"dtype": torch.float64, "d": 20, "border": "zero"},
    {"dtype": torch.bfloat16, "d": 16, "layout": "nhwc", "border": "zero"},
    {"dtype": torch.float16, "d": 8, "border": "mask"},
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in MORE_CASES)], ids=label
)
def test_is_the_equation(interpreter, case):
    interpreter(check_equation, **{"heads": 1, "window": 3, **case})


@pytest.mark.slow
@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize("window", [3, 7, 15])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_is_the_equation_in_every_variant(interpreter, border, window, layout, dtype):
    shape = {"d": 12, "H": 4, "W": 5, "layout": layout, "dtype": dtype}
    interpreter(check_equation, border, heads=2, window=window, **shape)


def check_operators(layout, position):
    from saccade.ops.sasa import LOCAL_ATTENTION as OP

    tensors, g = example(heads=1, layout=layout, position=position, H=2, W=2)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    options = 1, 3, "zero"
    torch.library.opcheck(OP._call, (*leaves, *options, "triton", True))
    inputs = [None if t is None else t.detach() for t in tensors]
    residuals = OP._call(*inputs, *options, "triton", True)
    expected = [t is not None for t in inputs]
    backward = (g, *inputs, *options, *residuals, "triton", expected)
    torch.library.opcheck(OP._call_backward, backward)


@pytest.mark.parametrize(
    ("layout", "position"), [("nchw", True), pytest.param("nhwc", False, marks=pytest.mark.slow)]
)
def test_operators_keep_their_contracts(interpreter, layout, position):
    interpreter(check_operators, layout, position)


def check_compile():

    tensors, g = example(heads=1, H=2, W=3)

    def run(*t):
        return local_attention(*t, 1, 3)

    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(gradients(run, tensors, g), gradients(whole, tensors, g), strict=True):
        assert torch.equal(a, b)


def test_compiles_in_one_graph_to_the_same_bits(interpreter):
    interpreter(check_compile)


def check_nan(border):

    (q, k, v, row, col), g = example(H=6, W=7, heads=1)
    reached = torch.zeros(6, 7, dtype=torch.bool)
    reached[2:5, 3:6] = True  # the windows that hold pixel (3, 4)
    for index in (1, 2):
        inputs = [q, k.clone(), v.clone(), row, col]
        inputs[index][:, :, 3, 4] = torch.nan
        y, dq, *_ = gradients(lambda *t: local_attention(*t, 1, 3, border), inputs, g)
        assert torch.equal(y.isnan().any(1)[0], reached)
        assert torch.equal(dq.isnan().any(1)[0], reached)


@pytest.mark.parametrize("border", ["zero", "mask"])
def test_nan_stays_in_its_windows(interpreter, border):
    interpreter(check_nan, border)


def check_extremes():
    """Logits in the thousands, of both signs: the softmax neither overflows nor divides by zero."""

    (q, k, v, *tables), g = example(heads=1, H=4, W=4, d=8, dtype=torch.float64)
    compare(lambda *t: local_attention(*t, 1, 3, "mask"), lambda *t: plain(*t, 1, 3, "mask"),
            (q * 1e3, k, v, *tables), g)  # fmt: skip


def test_large_logits(interpreter):
    interpreter(check_extremes)


def check_flops():
    from torch.utils.flop_counter import FlopCounterMode

    tensors, g = example(heads=1, d=4, H=2, W=3)
    with FlopCounterMode(display=False) as counter:
        gradients(lambda *t: local_attention(*t, 1, 3), tensors, g)
    assert counter.get_total_flops() == 3 * (2 * 3 * (4 * 2 * 3) * 9)  # q k, q r, p v; backward 2x


def test_flops_are_those_of_the_equation(interpreter):
    interpreter(check_flops)


def check_refusals():

    from saccade.ops.sasa import LOCAL_ATTENTION

    (q, k, v, row, col), _ = example()
    for rule, call in {
        "heads must divide": (q, k, v, row, col, 3, 3, "zero"),
        "window must be odd": (q, k, v, row, col, 2, 4, "zero"),
        "border must be one of": (q, k, v, row, col, 2, 3, "wrap"),
        "k is B C H W": (q, k[..., :2], v, row, col, 2, 3, "zero"),
        "come together": (q, k, v, row, None, 2, 3, "zero"),
        "row and col must be": (q, k, v, row, col, 2, 5, "zero"),
    }.items():
        with pytest.raises(ValueError, match=rule):
            LOCAL_ATTENTION(*call, backend="triton")


def test_refuses_what_it_would_misread(interpreter):
    interpreter(check_refusals)


def check_public():
    """The public function insisting on Triton, against its reference; and second derivatives."""
    from saccade.ops import sasa

    tensors, g = example(dtype=torch.float64, H=2, W=3)

    def run(form):
        return lambda *t: sasa.local_attention(*t, 2, 3, "mask", form)

    compare(run("triton"), run("unfolded"), tensors, g)
    leaves = [t.requires_grad_() for t in tensors]

    def twice(form):
        once = torch.autograd.grad(run(form)(*leaves), leaves, g, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in once), leaves)

    for a, b in zip(twice("triton"), twice("unfolded"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_is_reached_through_the_public_function(interpreter):
    interpreter(check_public)
