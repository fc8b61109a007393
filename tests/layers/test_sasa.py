"""StandAloneAttention against golden values, plain loops, and what it promises."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from saccade.layers.sasa import PLACES, StandAloneAttention, halve, sinusoids
from saccade.ops.operator import use_backend
from tests.ops.test_sasa import loops

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def layer_of(golden):
    """The layer that a golden file describes, with its weights."""
    out, dim = golden["wq"].shape
    layer = StandAloneAttention(
        dim,
        out,
        heads=int(golden["heads"]),
        window=int(golden["k"]),
        stride=int(golden["stride"]),
        border=str(golden["border"]),
        content=bool(golden["content"]),
        position={"rel": "relative", "none": "none"}[str(golden["pos"])],
        shared=bool(golden["rel_shared"]),
    ).double()
    places = {f"{name}.weight": f"w{name[0]}" for name in ("query", "key", "value")}
    places |= {"row": "rel_row", "col": "rel_col"}
    state = {
        place: torch.from_numpy(golden[name]).reshape(like.shape)
        for place, like in layer.state_dict().items()
        for name in (places[place],)
    }
    layer.load_state_dict(state)
    return layer, places


@pytest.mark.parametrize("backend", ["auto", "unfolded", "tiled", "shifted"])
def test_golden_values(shared, backend):
    files = sorted((shared / "golden" / "sasa").glob("local_*.npz"))
    assert files
    for file in files:
        golden = dict(np.load(file))
        layer, places = layer_of(golden)
        layer.backend = backend
        x = torch.from_numpy(golden["x"]).requires_grad_()
        y = layer(x)
        exact(y, torch.from_numpy(golden["y"]))
        y.backward(torch.from_numpy(golden["g"]))
        exact(x.grad, torch.from_numpy(golden["gx"]))
        for name, parameter in layer.named_parameters():
            expected = torch.from_numpy(golden["g" + places[name]])
            exact(parameter.grad, expected.reshape(parameter.shape))


@pytest.mark.parametrize(
    ("options", "dim", "H", "W"),
    [
        ({"heads": 2, "window": 7}, 8, 4, 5),  # a map smaller than the window
        ({"out": 8, "heads": 2, "window": 3}, 6, 5, 4),  # other width out than in
        ({"heads": 2, "window": 5, "position": "none"}, 4, 5, 4),
        ({"heads": 2, "window": 5, "content": False}, 4, 5, 4),
        ({"heads": 2, "window": 5, "shared": False}, 8, 5, 4),
        ({"heads": 8, "window": 7}, 64, 5, 4),  # the first stage's
        ({"heads": 2, "window": 3, "stride": 2}, 4, 5, 7),
        ({"heads": 2, "window": 3, "stride": 2, "border": "mask"}, 4, 6, 5),
        ({"heads": 2, "window": 3, "scale": True}, 8, 4, 4),
        ({"heads": 2, "window": 3, "position": "absolute"}, 8, 4, 5),
    ],
)
def test_equals_plain_loops(options, dim, H, W):
    layer = StandAloneAttention(dim, **options).double()
    x = torch.randn(2, dim, H, W, dtype=torch.float64)
    z = x + sinusoids(x) if options.get("position") == "absolute" else x

    def project(conv):
        return torch.einsum("oi,bihw->bohw", conv.weight[:, :, 0, 0], z)

    q = project(layer.query)
    q = q / math.sqrt(q.shape[1] // layer.heads) if options.get("scale") else q
    k = None if layer.key is None else project(layer.key)
    y = loops(
        q, k, project(layer.value), layer.row, layer.col, layer.heads, layer.window, layer.border
    )
    if options.get("stride") == 2:
        rows = [y[:, :, i : i + 2] for i in range(0, H, 2)]
        cells = [[r[..., j : j + 2].mean((2, 3)) for j in range(0, W, 2)] for r in rows]
        y = torch.stack([torch.stack(line, -1) for line in cells], -2)
    exact(layer(x), y)


def test_parameters_are_those_of_the_paper():
    def count(**options):
        return sum(p.numel() for p in StandAloneAttention(64, **options).parameters())

    tables = 2 * 7 * 4
    assert count() == 3 * 64 * 64 + tables
    assert count(content=False) == 2 * 64 * 64 + tables
    assert count(position="none") == count(position="absolute") == 3 * 64 * 64
    assert count(shared=False) == 3 * 64 * 64 + 8 * tables
    assert all(not name.endswith("bias") for name, _ in StandAloneAttention(64).named_parameters())


def test_weights_are_those_of_forward():
    layer = StandAloneAttention(8, heads=2, window=3, border="mask").double()
    x = torch.randn(1, 8, 4, 5, dtype=torch.float64)
    a = layer.weights(x, at=[(0, 0), (2, 3)])
    assert a.shape == (1, 2, 2, 3, 3)
    corner = a[0, :, 0]
    assert (corner[:, 0] == 0).all()
    assert (corner[:, :, 0] == 0).all()
    v = layer.value(x).unflatten(1, (2, 4))[0, :, :, 1:4, 2:5]  # around (2, 3)
    y = (a[0, :, 1, None] * v).sum((2, 3)).flatten()
    exact(y, layer(x)[0, :, 2, 3])
    assert layer.weights(x).shape == (1, 2, 20, 3, 3)


def test_an_odd_end_is_the_mean_of_what_exists():
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    assert halve(x).tolist() == [[[[2.0, 3.5], [6.5, 8.0]]]]


def test_follows_the_map_when_it_moves():
    layer = StandAloneAttention(8, heads=2, window=5).double()
    x = torch.randn(1, 8, 16, 18, dtype=torch.float64)
    moved, there = layer(x.roll((2, 3), (2, 3))), layer(x).roll((2, 3), (2, 3))
    exact(moved[..., 4:-2, 5:-2], there[..., 4:-2, 5:-2])
    assert not torch.allclose(moved, there)  # at the border, the world does change


def test_sinusoids_tell_places_apart():
    x = torch.zeros(1, 16, 6, 7)
    table = sinusoids(x)
    assert table.shape == (16, 6, 7)
    assert table.abs().max() <= 1
    places = table.flatten(1).T
    assert torch.cdist(places, places).fill_diagonal_(1).min() > 0.1
    assert torch.equal(table[:8, :, 0], table[:8, :, 5])  # rows in the first half,
    assert torch.equal(table[8:, 0], table[8:, 4])  # columns in the second


def test_begins_with_logits_of_the_size_of_the_input():
    layer = StandAloneAttention(256)
    x = torch.randn(1, 256, 8, 8)
    q, k, v = layer.project(x)
    for t in (q, k, v):
        assert t.std().item() == pytest.approx(1, rel=0.1)
    assert layer.row.std().item() == pytest.approx(32**-0.5, rel=0.3)


@pytest.mark.parametrize("heads", [4, 8])
@pytest.mark.parametrize("shared", [True, False])
def test_with_locality_each_head_looks_at_one_place_first_however_large_the_input(heads, shared):
    layer = StandAloneAttention(32, heads=heads, shared=shared, border="mask", locality=2.0)
    x = torch.randn(1, 32, 15, 15) + 3  # with a mean, which would turn all queries one way
    for size in (1e-3, 1.0, 1e3):
        weights = layer.weights(size * x, at=[(7, 7)])[0, :, 0]  # h 7 7
        assert (weights.flatten(1).amax(1) > 0.6).all()
        seen = [divmod(int(i), 7) for i in weights.flatten(1).argmax(1)]
        assert [(a - 3, b - 3) for a, b in seen] == list(PLACES[:heads])
    blur = StandAloneAttention(32, heads=heads, shared=shared, border="mask")
    assert blur.weights(1e-3 * x, at=[(7, 7)]).amax() < 0.03  # uniform: 0.0204


def test_with_locality_a_layer_begins_as_shifts_of_its_heads():
    layer = StandAloneAttention(16, heads=4, locality=50.0)
    x = torch.randn(1, 16, 9, 9)
    v = layer.value(x).unflatten(1, (4, -1))
    shifted = [
        v[:, i].roll((-y, -x), (2, 3)) for i, (y, x) in enumerate(PLACES[:4])
    ]  # the pixel there comes here
    inner = torch.cat(shifted, 1)[..., 1:-1, 1:-1]
    torch.testing.assert_close(layer(x)[..., 1:-1, 1:-1], inner)


def test_with_locality_everything_learns_from_the_first_step():
    """Wq = Wk = 0 is no saddle: keys learn through the queries' bias, queries through the table."""
    layer = StandAloneAttention(16, heads=4, locality=2.0)
    layer(torch.randn(2, 16, 9, 9)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 1e-4, name
    plain = StandAloneAttention(16, heads=4)
    more = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 16  # the bias of queries, and nothing else


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"locality": -1.0}, "locality, 0 or more"),
        ({"locality": 1.0, "position": "none"}, "written into relative positions"),
        ({"locality": 1.0, "heads": 4}, "heads at least 4 wide"),
        ({"window": 6}, "window must be odd to have a centre, got window=6; try 7"),
        ({"heads": 5}, "heads must divide out, got out=8 heads=5"),
        ({"out": 12, "heads": 4}, "even head width .* got out=12 heads=4"),
        ({"border": "reflect"}, "border must be one of .* got border='reflect'"),
        ({"position": "learned"}, "position must be one of .* got position='learned'"),
        ({"stride": 3}, "stride must be 1 or 2, got stride=3"),
        ({"backend": "fast"}, "backend must be one of"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        StandAloneAttention(8, **{"heads": 2, **options})
    with pytest.raises(ValueError, match="multiple of 4 channels"):
        StandAloneAttention(6, 8, heads=2, position="absolute")


def test_an_odd_head_width_is_fine_without_relative_positions():
    layer = StandAloneAttention(9, heads=3, position="none")
    assert layer(torch.randn(1, 9, 5, 5)).shape == (1, 9, 5, 5)


# -- elsewhere than in eager mode -----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"border": "mask", "content": False, "stride": 2}])
def test_exports_for_every_size_in_plain_operators(options, untyped):
    layer = StandAloneAttention(8, heads=2, window=5, **options).eval()
    size = torch.export.Dim.DYNAMIC
    shapes = ({0: size, 2: size, 3: size},)
    with torch.no_grad():
        program = torch.export.export(layer, (torch.randn(2, 8, 9, 12),), dynamic_shapes=shapes)
        for shape in [(1, 8, 3, 4), (3, 8, 17, 8)]:
            x = torch.randn(shape)
            torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-5, atol=1e-6)
        with use_backend("plain"):
            program = torch.export.export(layer, (torch.randn(2, 8, 9, 12),), dynamic_shapes=shapes)
        torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-5, atol=1e-6)
    spaces = {str(node.target).split(".")[0] for node in program.graph.nodes}
    assert "saccade" not in spaces


def test_onnx_computes_the_same(untyped, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    layer = StandAloneAttention(8, heads=2, window=3, stride=2, border="mask").eval()
    size = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(
        layer, (torch.randn(2, 8, 9, 12),), dynamo=True, verbose=False,
        dynamic_shapes=({0: size, 2: size, 3: size},),
    )  # fmt: skip
    program.save(tmp_path / "layer.onnx")
    session = runtime.InferenceSession(tmp_path / "layer.onnx")
    for shape in [(1, 8, 3, 4), (3, 8, 17, 8)]:
        x = torch.randn(shape)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), layer(x).detach(), rtol=1e-5, atol=1e-6)


def test_meta_device_keeps_shapes():
    with torch.device("meta"):
        layer = StandAloneAttention(8, 16, heads=4, stride=2)
        assert layer(torch.empty(2, 8, 9, 12)).shape == (2, 16, 5, 6)


def test_pooling_is_after_attention():
    layer = StandAloneAttention(8, heads=2, window=3, stride=2)
    x = torch.randn(1, 8, 6, 6)
    strided = layer(x)
    layer.stride = 1
    torch.testing.assert_close(strided, F.avg_pool2d(layer(x), 2))


@torch.no_grad()
@pytest.mark.parametrize("change", ["bias", "local", "hook", "none"])
def test_projections_by_one_product_or_one_by_one(change):
    """A projection that is more than its matrix is called."""
    layer = StandAloneAttention(16, heads=2, window=3, locality=float(change == "local"))
    if change == "bias":
        layer.query = torch.nn.Conv2d(16, 16, 1)
    if change == "hook":
        layer.key.register_forward_hook(lambda _, __, y: 2 * y)
    x = torch.randn(2, 16, 9, 11).to(memory_format=torch.channels_last)
    want = layer.query(x), layer.key(x), layer.value(x)
    for got, expected in zip(layer.project(x), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
