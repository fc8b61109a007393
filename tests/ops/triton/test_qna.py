"""Learned-query aggregation in Triton's interpreter: the equation, gradients, contracts."""

from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from tests.ops.triton.check import compare, gradients, label


def plain(s, v, rpe, ws, stride, padding, fold):
    """The equation, offset by offset, with all weights of a window at hand."""
    k = rpe.shape[0]

    def windows(x, outside):
        """B Ho Wo ... k^2: what every window sees."""
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (padding,) * 4, value=outside)
        return x.unfold(1, k, stride).unfold(2, k, stride).flatten(-2)

    p = (windows(s, -torch.inf) + rpe.flatten(0, 1).permute(1, 2, 0)).softmax(-1)
    c = p if ws is None else p * ws.flatten(0, 1).permute(1, 2, 0)  # B Ho Wo L h k^2
    z = (c[..., None, :] * windows(v, 0.0)[:, :, :, None]).sum(-1)
    return z.sum(3) if fold else z


def example(B=1, H=4, W=5, L=2, heads=2, d=4, k=3, weighted=True, dtype=torch.float32, scale=1.0):
    torch.manual_seed(0)

    def draw(*shape):
        return torch.randn(shape).to(dtype)

    ws = draw(k, k, L, heads) if weighted else None
    return draw(B, H, W, L, heads) * scale, draw(B, H, W, heads, d), draw(k, k, L, heads), ws


def aggregate(*call):
    from saccade.ops import qna

    return qna.aggregate(*call, backend="triton")


def check_equation(stride=1, padding=1, fold=True, **shape):
    tensors = example(**shape)

    def run(f):
        return lambda *t: f(*t, stride, padding, fold)

    g = torch.randn_like(run(plain)(*tensors))
    compare(run(aggregate), run(plain), tensors, g)


CASES = [
    {"stride": 2, "H": 4, "W": 3, "k": 5, "padding": 2, "L": 1},
    {"stride": 3, "padding": 0, "H": 6, "W": 7},
    {"fold": False, "stride": 2, "L": 3, "weighted": False, "H": 3, "W": 4},
    {"heads": 3, "d": 40, "L": 1, "H": 1, "W": 2},  # three programs a window
    {"B": 2, "H": 2, "W": 2, "dtype": torch.bfloat16},
    {"H": 2, "W": 3, "dtype": torch.float16, "stride": 2},
]
MORE_CASES = [
    {"B": 2, "H": 2},
    {"stride": 2, "H": 7, "W": 6, "k": 5, "padding": 2, "L": 1},
    {"fold": False, "stride": 2, "L": 3, "weighted": False},
    {"fold": False, "L": 2, "H": 3, "W": 3},
    {"L": 3, "heads": 3, "d": 5},
    {"L": 1, "heads": 1, "d": 128},
    {"heads": 3, "d": 40, "H": 2, "W": 2},  # three programs a window
    {"H": 2, "W": 1, "k": 5, "padding": 2},
    {"H": 5, "W": 4, "d": 64, "heads": 1, "L": 1},  # several programs along the map
    {"dtype": torch.float64, "scale": 300.0},
    {"dtype": torch.bfloat16},
    {"dtype": torch.float16, "stride": 2},
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in MORE_CASES)], ids=label
)
def test_is_the_equation(interpreter, case):
    interpreter(check_equation, **case)


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("L", [1, 2, 4])
@pytest.mark.parametrize("fold", [True, False])
def test_is_the_equation_in_every_variant(interpreter, k, stride, L, fold):
    interpreter(check_equation, k=k, padding=k // 2, stride=stride, L=L, fold=fold, H=7, W=8)


def check_extremes():
    """Windows far below the map's maximum keep their weights; fp32 scores in the hundreds."""
    s, v, rpe, ws = example(heads=1, H=6, W=6)
    s[:, :3] += 500
    s[:, 3:] -= 500
    compare(lambda *t: aggregate(*t, 1, 1), lambda *t: plain(*t, 1, 1, True), (s, v, rpe, ws),
            torch.randn(1, 6, 6, 1, 4))  # fmt: skip


def test_every_window_has_its_own_maximum(interpreter):
    interpreter(check_extremes)


def check_nan():
    tensors = example(heads=1, H=6, W=7)
    reached = torch.zeros(6, 7, dtype=torch.bool)
    reached[1:4, 2:5] = True  # the windows that hold pixel (2, 3)
    for index in (0, 1):
        inputs = [t.clone() for t in tensors]
        inputs[index][:, 2, 3] = torch.nan
        assert torch.equal(aggregate(*inputs, 1, 1).isnan().flatten(3).any(3)[0], reached)


def test_nan_stays_in_its_windows(interpreter):
    interpreter(check_nan)


def check_operators(weighted, fold):
    from saccade.ops.qna import AGGREGATE as OP

    tensors = example(heads=1, L=1, H=3, W=3, weighted=weighted)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    options = 2, 1, fold
    torch.library.opcheck(OP._call, (*leaves, *options, "triton", True))
    inputs = [None if t is None else t.detach() for t in tensors]
    z, *residuals = OP._call(*inputs, *options, "triton", True)
    expected = [t is not None for t in inputs]
    backward = (torch.randn_like(z), *inputs, *options, None, *residuals, "triton", expected)
    torch.library.opcheck(OP._call_backward, backward)


@pytest.mark.parametrize(
    ("weighted", "fold"), [(True, True), pytest.param(False, False, marks=pytest.mark.slow)]
)
def test_operators_keep_their_contracts(interpreter, weighted, fold):
    interpreter(check_operators, weighted, fold)


def check_compile():
    tensors = example(heads=1, L=1, H=3, W=3)

    def run(*t):
        return aggregate(*t, 1, 1)

    g = torch.randn(1, 3, 3, 1, 4)
    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(gradients(run, tensors, g), gradients(whole, tensors, g), strict=True):
        assert torch.equal(a, b)


def test_compiles_in_one_graph_to_the_same_bits(interpreter):
    interpreter(check_compile)


def check_flops():
    from torch.utils.flop_counter import FlopCounterMode

    tensors = example(heads=1, L=2, d=4, H=3, W=3)
    with FlopCounterMode(display=False) as counter:
        gradients(lambda *t: aggregate(*t, 2, 1), tensors, torch.randn(1, 2, 2, 1, 4))
    assert counter.get_total_flops() == 3 * (2 * (2 * 2) * 9 * 2 * (4 + 1))


def test_flops_are_those_of_the_equation(interpreter):
    interpreter(check_flops)


def check_refusals():
    from saccade.ops.qna import AGGREGATE

    s, v, rpe, ws = example()
    for rule, call in {
        "v is B H W h d": (s, v[:, 1:], rpe, ws, 1, 1, True),
        "rpe is k k L h": (s, v, rpe[:, :2], ws, 1, 1, True),
        "ws is k k L h, on": (s, v, rpe, ws[:2, :2], 1, 1, True),
        "0 <= padding < k": (s, v, rpe, ws, 1, 3, True),
        "no window fits": (s[:, :2], v[:, :2], rpe, ws, 1, 0, True),
    }.items():
        with pytest.raises(ValueError, match=rule):
            AGGREGATE(*call, backend="triton")


def test_refuses_what_it_would_misread(interpreter):
    interpreter(check_refusals)


def check_public():
    """The public function, told that it is on a GPU: fp32, and with gradients."""
    from saccade.ops import qna

    tensors = example(heads=1, L=2, H=3, W=3)
    g = torch.randn(1, 3, 3, 1, 4)
    with mock.patch.dict(qna.AGGREGATE.kernels, native=qna.AGGREGATE.kernels["triton"]):
        got = gradients(lambda *t: qna.aggregate(*t, 1, 1), tensors, g)
    want = gradients(lambda *t: qna.unrolled(*t, 1, 1), tensors, g)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_is_reached_through_the_public_function(interpreter):
    interpreter(check_public)
