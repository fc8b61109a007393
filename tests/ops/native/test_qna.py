import itertools
import json
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops import native
from saccade.ops import qna as ops
from saccade.ops.native import qna as kernels
from saccade.ops.native.call import Map
from saccade.ops.native.qna import InTurns
from tests.ops.native import oracle
from tests.ops.native.oracle import gradients, relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())

WIDTHS = [8, 6]  # of heads: lanes along channels, along pixels
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}


aggregate = partial(ops.aggregate, backend="native")
attend = partial(ops.attend, backend="native")


def parted(vs, rpe):
    """Scores and values as views of the map that holds both, the values first."""
    L, h = rpe.shape[2:]
    v, s = vs.tensor_split((vs.shape[-1] - L * h,), -1)
    return s.unflatten(-1, (L, h)), v.unflatten(-1, (h, -1))


def aggregate_joined(vs, rpe, ws, stride, padding, fold=True):
    return aggregate(*parted(vs, rpe), rpe, ws, stride, padding, fold)


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny operations: on a busy machine, waiting for a second thread takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def example(B=2, H=9, W=11, heads=2, d=8, L=2, k=3, stride=1, padding=1, fold=True, ws=True,
            dtype=torch.float32, layout="nhwc", seed=0):  # fmt: skip
    """s, v, rpe, ws and an upstream gradient."""
    torch.manual_seed(seed)

    def map_of(H, W, *channels):
        x = torch.randn(B, H, W, *channels).to(dtype)
        if layout == "nchw":
            return x.movedim((1, 2), (-2, -1)).contiguous().movedim((-2, -1), (1, 2))
        return x.repeat_interleave(2, 2)[:, :, ::2] if layout == "strided" else x

    s, v = map_of(H, W, L, heads), map_of(H, W, heads, d)
    rpe, scale = (torch.randn(k, k, L, heads).to(dtype) for _ in range(2))
    Ho, Wo = ((n + 2 * padding - k) // stride + 1 for n in (H, W))
    g = map_of(Ho, Wo, *(() if fold else (L,)), heads, d)
    return (s, v, rpe, scale if ws and fold else None), g


def compare(tensors, g, stride, padding, fold):
    dtype = tensors[0].dtype
    y, dy = gradients(lambda *t: aggregate(*t, stride, padding, fold), tensors, g)
    exact = [None if t is None else t.double() for t in tensors]
    want, dwant = gradients(
        lambda *t: oracle.aggregate(*t, stride, padding, fold), exact, g.double()
    )
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert relative(y, want) <= TOLERANCE[dtype]
    # In a window of one pixel some gradients are zero, up to the rounding of the others.
    least = 0.1 * max(t.abs().max() for t in dwant)
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected, least) <= TOLERANCE[dtype]


def draw(seed):
    r = random.Random(seed)
    k, stride = r.choice([1, 2, 3, 3, 3, 4, 5, 6, 7, 7, 9]), r.choice([1, 1, 1, 2, 2, 3])
    padding = r.choice([k // 2, k // 2, r.randrange(k)])
    least = max(1, k - 2 * padding)
    return {
        "B": r.choice([1, 2]), "heads": r.choice([1, 2, 3, 8]), "d": r.choice([1, 4, 5, 8, 16, 20]),
        "L": r.randint(1, 4), "k": k, "stride": stride, "padding": padding,
        "H": least + r.randint(0, 14), "W": least + r.choice([r.randint(0, 18), r.randint(16, 40)]),
        "fold": r.random() < 0.75, "ws": r.random() < 0.7,
        "dtype": r.choice([torch.float32] * 3 + [torch.bfloat16, torch.bfloat16, torch.float64]),
        "layout": r.choice(["nhwc", "nhwc", "nchw", "strided"]), "seed": seed,
    }  # fmt: skip


def check(seed):
    shape = draw(seed)
    compare(*example(**shape), shape["stride"], shape["padding"], shape["fold"])


@pytest.mark.parametrize("chunk", range(10))
def test_equals_the_equation(chunk):
    for seed in range(chunk * 20, chunk * 20 + 20):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_equals_the_equation_many_times(chunk):
    for seed in range(1000 + chunk * 80, 1000 + chunk * 80 + 80):
        check(seed)


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_every_instruction_set_of_this_machine(isa):
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    try:
        for dtype in TOLERANCE:
            for stride, d in itertools.product((1, 2), (8, 20)):
                tensors, g = example(H=13, W=37, d=d, stride=stride, dtype=dtype)
                compare(tensors, g, stride, 1, True)
        for k, stride, L in itertools.product(range(3, 8), (1, 2), (1, 2, 4)):
            tensors, g = example(H=11, W=26, L=L, k=k, padding=k // 2, stride=stride)
            compare(tensors, g, stride, k // 2, True)
    finally:
        native.use()


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
@pytest.mark.parametrize(
    "d", [4, 24, *(pytest.param(d, marks=pytest.mark.slow) for d in (8, 16, 32))]
)
def test_heads_that_fill_vectors_in_part_or_several_times(isa, d):
    """A vector may hold two heads, a part of one, or the end of one and the beginning of the next,
    and the last of an odd number of heads leaves half of one empty."""
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    try:
        for heads, (k, stride, L), dtype in itertools.product(
            (1, 2, 3, 5), ((3, 1, 2), (7, 1, 1), (5, 1, 3), (3, 2, 1), (5, 2, 2)), TOLERANCE
        ):
            shape = {"B": 1, "H": 9, "W": 17, "heads": heads, "d": d, "L": L}
            tensors, g = example(**shape, k=k, padding=k // 2, stride=stride, dtype=dtype)
            compare(tensors, g, stride, k // 2, True)
    finally:
        native.use()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_nothing_beside_the_heads_is_read_or_written(isa, heads):
    """All maps are the middle of wider ones, full of NaN, which must stay there."""
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    (s, v, rpe, ws), g = example(heads=heads, d=8)
    want, (ds, dv, *_) = gradients(lambda *t: aggregate(*t, 1, 1), (s, v, rpe, ws), g)

    def among_nan(t):
        wide = torch.full((*t.shape[:3], t[0, 0, 0].numel() + 16), torch.nan)
        wide[..., 8:-8] = t.flatten(3)
        return wide

    def middle(wide):
        return Map.of(wide[..., 8:-8].permute(0, 3, 1, 2))

    vs = torch.cat((v.flatten(3), s.flatten(3)), -1)
    maps = {"s": s, "v": v, "out": want, "gout": g, "ds": ds, "dv": dv}
    wide = {name: among_nan(t if name in "s v gout" else 0 * t) for name, t in maps.items()}
    sums = torch.empty_like(rpe), torch.empty_like(ws)
    try:
        for name, rest in (("forward", {}), ("backward", {"sums": sums})):
            kernel = InTurns(f"saccade_qna_{name}", vs, want, rpe, ws, 1, 1, (), **rest)
            for field in wide if rest else ("s", "v", "out"):
                setattr(kernel.call, field, middle(wide[field]))
            kernel(0, len(vs))
    finally:
        native.use()
    for name, t in wide.items():
        torch.testing.assert_close(t, among_nan(maps[name]), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("L", [1, 4])  # lanes along channels, along pixels
@pytest.mark.parametrize("stride", [1, 2])
def test_strips_bands_and_groups_leave_no_seam(stride, L):
    """Wide, long and with many channels: cut along columns, rows and heads."""
    tensors, g = example(B=1, H=50, W=170, heads=6, d=32, L=L, k=5, padding=2, stride=stride)
    compare(tensors, g, stride, 2, True)


GOLDEN = ["g01_L1_s1_h1_k3", "g02_L2_s1_h4_k3", "g03_L2_s2_h8_k3_down", "g04_L2_s2_h4_k5_odd",
          "g05_L1_s2_h8_k7_odd", "g06_L2_s1_h8_k7"]  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(shared, name):
    """The official layer between its projections, which are linear."""
    golden = np.load(shared / "golden" / "qna" / f"layer_{name}.npz")
    c = json.loads(bytes(golden["config"]).decode())
    k, L, h = c["k"], c["L"], c["h"]
    t = {key: torch.from_numpy(golden[key]).double() for key in golden.files if key != "config"}
    v = (t["x"] @ t["w:to_v/kernel"]).unflatten(-1, (h, -1))
    # scores in float64: the stored ones are rounded
    q = t["i:query_norm_scaled"]
    s = torch.einsum("byxhd,lhd->byxlh", (t["x"] @ t["w:Wk"]).unflatten(-1, (h, -1)), q)
    assert relative(s.float(), t["i:qk_score"]) < 1e-5
    rpe = t["w:rpe_bias"].view(k, k, L, h)
    ws = t["w:attn_scale_weights"].view(k, k, L, h) if "w:attn_scale_weights" in t else None
    padding = c.get("padding", (k - 1) // 2)
    y = aggregate(s, v, rpe, ws, c["s"], padding)
    out = y.flatten(3) @ t["w:to_out/kernel"]
    assert relative(out, t["out_f64"]) < 1e-6  # the stored queries are rounded to float32


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradcheck(stride, fold):
    tensors, _ = example(B=1, H=4, W=5, d=3, stride=stride, fold=fold, dtype=torch.float64)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *t: aggregate(*t, stride, 1, fold), leaves)


@pytest.mark.parametrize("fold", [True, False])
def test_opcheck(fold, untyped):
    tensors, g = example(fold=fold)
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    options, how = (1, 1, fold), ("native", True)
    torch.library.opcheck(torch.ops.saccade.aggregate.default, (*leaves, *options, *how))
    plain = [None if t is None else t.detach() for t in tensors]
    _, *residuals = torch.ops.saccade.aggregate(*plain, *options, *how)
    expected = [True, True, True, fold]
    back = g, *plain, *options, None, *residuals, "native", expected
    torch.library.opcheck(torch.ops.saccade.aggregate_backward.default, back)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("fold", [True, False])
def test_joined_is_the_same_bit_for_bit(fold, stride):
    (s, v, *tables), g = example(fold=fold, stride=stride)
    y, (ds, dv, *dtables) = gradients(lambda *t: aggregate(*t, stride, 1, fold), (s, v, *tables), g)
    vs = torch.cat((v.flatten(3), s.flatten(3)), -1)
    y2, (dvs, *dtables2) = gradients(
        lambda *t: aggregate_joined(*t, stride, 1, fold), (vs, *tables), g
    )
    assert torch.equal(y, y2)
    assert torch.equal(dvs, torch.cat((dv.flatten(3), ds.flatten(3)), -1))
    for a, b in zip(dtables, dtables2, strict=True):
        assert a is b is None or torch.equal(a, b)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("d", WIDTHS)
def test_nan_reaches_only_its_window(which, stride, d):
    tensors, g = example(H=12, W=21, heads=2, d=d, stride=stride)
    clean, dclean = gradients(lambda *t: aggregate(*t, stride, 1), tensors, g)
    spoilt = [t.clone() for t in tensors]
    spoilt[which][0, 6, 18, 1, 0] = torch.nan  # query 1 of head 0, or channel 0 of head 1
    y, dy = gradients(lambda *t: aggregate(*t, stride, 1), spoilt, g)
    seen = torch.zeros(2, 12, 21, 2, d, dtype=torch.bool)
    seen[0, 5:8, 17:20, which] = True  # on the grid of inputs
    seen = seen[:, ::stride, ::stride]
    assert torch.equal(y[~seen], clean[~seen])
    assert y[seen].isnan().any()
    near = torch.zeros(2, 12, 21, dtype=torch.bool)
    near[0, 4:9, 16:21] = True
    for got, want in zip(dy[:2], dclean[:2], strict=True):
        assert torch.equal(got[~near], want[~near])


def test_nan_reaches_only_its_window_of_sums():
    """Sums multiply whatever is in the window."""
    tensors, g = example(H=20, W=30, L=1, k=7, padding=3)
    clean, dclean = gradients(lambda *t: aggregate(*t, 1, 3), tensors, g)
    for which in (0, 1):
        spoilt = [t.clone() for t in tensors]
        spoilt[which][0, 9, 14, 0, 0] = torch.nan
        y, dy = gradients(lambda *t: aggregate(*t, 1, 3), spoilt, g)
        seen = torch.zeros(2, 20, 30, dtype=torch.bool)
        seen[0, 6:13, 11:18] = True
        assert torch.equal(y[~seen], clean[~seen])
        assert torch.equal(y[:, :, :, 1], clean[:, :, :, 1])
        assert y[seen][:, 0, 0].isnan().all()
        near = torch.zeros(2, 20, 30, dtype=torch.bool)
        near[0, 3:16, 8:21] = True
        for got, want in zip(dy[:2], dclean[:2], strict=True):
            assert torch.equal(got[~near], want[~near])


@pytest.mark.parametrize("d", WIDTHS)
def test_nan_that_no_window_sees_reaches_nothing(d):
    """Rows and columns that are left over behind the last window."""
    tensors, g = example(H=10, W=12, d=d, stride=2, padding=0)
    spoilt = [t.clone() for t in tensors]
    for t in spoilt[:2]:
        t[:, 9], t[:, :, 11] = torch.nan, torch.nan
    clean, spoilt = (
        gradients(lambda *t: aggregate(*t, 2, 0), inputs, g) for inputs in (tensors, spoilt)
    )
    assert torch.equal(clean[0], spoilt[0])
    for want, got in zip(clean[1], spoilt[1], strict=True):
        assert torch.equal(got, want)


def test_a_masked_score_spoils_no_sum():
    (s, v, rpe, ws), g = example(H=12, W=19, L=1, k=7, padding=3)
    s[0, 5, 7] = -torch.inf
    s[1, 2:4, 3:9] = -3e38
    compare((s, v, rpe, ws), g, 1, 3, True)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("cliff", [0, 100])  # a few windows keep their own softmax
@pytest.mark.parametrize("heads", [4, 3])
def test_threads_and_runs_agree_bit_for_bit(d, cliff, heads):
    tensors, g = example(B=1, H=50, W=40, heads=heads, d=d)
    tensors[0][:, 40:] += cliff
    runs = []
    for n in (1, 2, 2, 5):
        torch.set_num_threads(n)
        y, dy = gradients(lambda *t: aggregate(*t, 1, 1), tensors, g)
        runs.append([y, *dy])
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("L", [1, 2])
@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("height", [60, 1e4, 1e8])
def test_extreme_scores_are_exact(height, L, d):
    """A cliff inside the map: windows far below the highest score keep their own softmax."""
    (s, v, rpe, ws), g = example(H=10, W=20, L=L, d=d, k=5, padding=2)
    s[:, :, :10] -= height
    s[:, 5:] += height
    compare((s, v, rpe, ws), g, 1, 2, True)
    y, dy = gradients(lambda *t: aggregate(*t, 1, 2), (s, v, rpe, ws), g)
    assert all(t.isfinite().all() for t in (y, *dy))


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_head_with_extreme_scores_leaves_its_neighbour_alone(stride, head):
    """Two heads may share vectors; only one has windows that keep their own softmax, or NaN."""
    (s, v, rpe, ws), g = example(H=10, W=20, heads=2, k=5, padding=2, stride=stride)
    clean, dclean = gradients(lambda *t: aggregate(*t, stride, 2), (s, v, rpe, ws), g)
    s[:, :, :10, :, head] -= 1e4
    compare((s, v, rpe, ws), g, stride, 2, True)
    s[:, 4, 5, :, head] = torch.nan
    y, dy = gradients(lambda *t: aggregate(*t, stride, 2), (s, v, rpe, ws), g)
    other = 1 - head
    assert torch.equal(y[:, :, :, other], clean[:, :, :, other])
    assert torch.equal(dy[0][..., other], dclean[0][..., other])
    assert torch.equal(dy[1][:, :, :, other], dclean[1][:, :, :, other])
    assert all(
        torch.equal(a[..., other], b[..., other]) for a, b in zip(dy[2:], dclean[2:], strict=True)
    )


def test_denormals_survive_a_call():
    tensors, _ = example()
    aggregate(*tensors, 1, 1)
    assert (torch.full((4,), 1e-40) * 0.5 > 0).all()


@pytest.mark.slow
def test_compiles_whole(untyped):
    tensors, g = example()

    def f(*t):
        return aggregate(*t, 1, 1).relu()

    want, dwant = gradients(f, tensors, g)
    got, dgot = gradients(torch.compile(f, fullgraph=True), tensors, g)
    assert torch.equal(got, want)
    assert all(torch.equal(a, b) for a, b in zip(dgot, dwant, strict=True))


def test_autocast_computes_in_bfloat16():
    tensors, _ = example()
    with torch.autocast("cpu", torch.bfloat16):
        y = aggregate(*tensors, 1, 1)
    assert y.dtype == torch.bfloat16
    assert relative(y, aggregate(*tensors, 1, 1).double()) < 5e-2


def test_flops_are_those_of_the_equation():
    (s, v, rpe, ws), g = example(L=2, k=3)
    one = 2 * (2 * 9 * 11) * 9 * (2 * 2) * (8 + 1)  # windows, places, queries and heads
    with FlopCounterMode(display=False) as counter:
        aggregate(s.requires_grad_(), v, rpe, ws, 1, 1).backward(g)
    assert counter.get_total_flops() == 3 * one


@pytest.mark.parametrize(("change", "message"), [
    ({"stride": 0}, "1 <= stride"),
    ({"padding": 3}, "padding < k"),
    ({"fold": False}, "no ws without fold"),
    ({"rpe": torch.zeros(3, 3, 1, 2)}, "rpe is k k L h"),
    ({"v": torch.zeros(2, 9, 11, 3, 8)}, "s is B H W L h, v is B H W h d"),
])  # fmt: skip
def test_refuses_with_the_cure(untyped, change, message):
    tensors, _ = example()
    call = dict(zip(("s", "v", "rpe", "ws"), tensors, strict=True))
    with pytest.raises(ValueError, match=message):
        aggregate(**call | {"stride": 1, "padding": 1} | change)


def test_refuses_a_map_smaller_than_the_window():
    tensors, _ = example(k=5, padding=2)
    with pytest.raises(ValueError, match="no window fits"):
        aggregate(*(t[:, :3, :3] if t.shape[0] == 2 else t for t in tensors), 1, 0)


# -- the layer ------------------------------------------------------------------------------------


def layer_example(B=3, H=9, W=11, C=6, heads=2, d=4, L=2, k=3, D=5, bias=True, ws=True):
    """x, weight, bias, rpe, ws, mix and its bias."""
    torch.manual_seed(0)
    J = heads * d + L * heads
    shapes = (B, H, W, C), (J, C), (J,), (k, k, L, heads), (k, k, L, heads), (D, heads * d), (D,)
    there = True, True, bias, True, ws, True, bias
    return [torch.randn(s) if t else None for s, t in zip(shapes, there, strict=True)]


def plain(x, weight, bias, rpe, ws, mix, mix_bias, stride=1, padding=1):
    s, v = parted(F.linear(x, weight, bias), rpe)
    return F.linear(
        oracle.aggregate(s, v, rpe, ws, stride, padding, True).flatten(3), mix, mix_bias
    )


@pytest.mark.parametrize("enough", [1, 2 * 4 * 9 * 11 * 12, 2**21])  # images a turn: 1, 2 and all
@pytest.mark.parametrize(("k", "L", "stride"), [(3, 2, 1), (7, 1, 1), (5, 1, 2)])
@pytest.mark.parametrize("more", [True, False])
def test_the_layer_equals_the_equation(monkeypatch, enough, k, L, stride, more):
    monkeypatch.setattr(kernels, "ENOUGH", enough)
    tensors = layer_example(k=k, L=L, C=8 if more else 6, bias=more, ws=more)  # 8: as wide as z
    how = stride, k // 2
    exact = [None if t is None else t.double() for t in tensors]
    want = plain(*exact, *how)
    g = torch.randn(want.shape)
    _, dwant = gradients(lambda *t: plain(*t, *how), exact, g.double())
    y, dy = gradients(lambda *t: attend(*t, *how), tensors, g)
    assert relative(y, want) <= 1e-5
    least = 0.1 * max(t.abs().max() for t in dwant)
    for got, expected in zip(dy, dwant, strict=True):
        assert relative(got, expected, least) <= 1e-5
    with torch.no_grad():
        assert torch.equal(attend(*tensors, *how), y)


def test_maps_of_any_layout():
    x, *rest = layer_example()
    strided = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert torch.equal(attend(strided, *rest, 1, 1), attend(x, *rest, 1, 1))


def test_backward_without_what_forward_kept():
    tensors = layer_example()
    y, vs, z = torch.ops.saccade.attend(*tensors, 1, 1, "native", True)
    none = torch.ops.saccade.attend(*tensors, 1, 1, "native", False)[1:]
    g, how = torch.randn_like(y), ("native", [True] * 7)
    with_residuals, without = (
        torch.ops.saccade.attend_backward(g, *tensors, 1, 1, None, *held, *how)
        for held in ((vs, z), none)
    )
    assert all(torch.equal(a, b) for a, b in zip(with_residuals, without, strict=True))


def test_the_layer_opcheck(untyped):
    tensors = layer_example(H=4, W=5)
    leaves = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.saccade.attend.default, (*leaves, 1, 1, "native", True))
    tensors = [t.detach() for t in tensors]
    y, vs, z = torch.ops.saccade.attend(*tensors, 1, 1, "native", True)
    inputs = (torch.randn_like(y), *tensors, 1, 1, None, vs, z, "native", [True] * 7)
    torch.library.opcheck(torch.ops.saccade.attend_backward.default, inputs)


def test_second_derivatives():
    tensors = layer_example(B=1, H=4, W=5)

    def penalty(f, tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        d = torch.autograd.grad(f(*leaves, 1, 1).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in d), leaves)

    want = penalty(plain, [t.double() for t in tensors])
    for a, b in zip(penalty(attend, tensors), want, strict=True):
        assert relative(a, b) < 1e-4


def test_flops_of_the_layer_are_those_of_the_equation():
    tensors = layer_example(B=1)
    with FlopCounterMode(display=False) as counter:
        attend(*tensors, 1, 1)
    pixels = 9 * 11
    assert counter.get_total_flops() == 2 * pixels * (6 * 12 + 8 * 5 + 9 * (2 * 2) * (4 + 1))


def test_takes_float32_alone():
    tensors = layer_example()
    assert ops.ATTEND.choose((*tensors, 1, 1)) == "native"
    for dtype in (torch.bfloat16, torch.float64):
        assert ops.ATTEND.choose((*(t.to(dtype) for t in tensors), 1, 1)) == "composed"
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.ATTEND.choose((*tensors, 1, 1)) == "composed"


def test_refuses_what_does_not_fit():
    x, weight, *rest = layer_example()
    with pytest.raises(ValueError, match="attend: x is B H W C"):
        ops.ATTEND(x[..., :-1], weight, *rest, 1, 1)
    x, *rest = layer_example()
    for small, padding, message in ((x[:, :2], 0, "no window fits"), (x, 3, "padding < k")):
        with pytest.raises(ValueError, match=message):
            attend(small, *rest, 1, padding)
