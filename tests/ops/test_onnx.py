"""Our operators as nodes in ONNX Runtime: the same function, in Python and in C++."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import saccade
from saccade import export
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.sasa import StandAloneAttention
from saccade.ops import native
from saccade.ops.native import build

pytestmark = [
    pytest.mark.usefixtures("untyped"),
    pytest.mark.skipif(not native.available(), reason="there are no kernels here"),
]
ROOT = Path(__file__).parents[2]


def written(model, path, **options):
    raw = export.Raw(model.eval()) if not isinstance(model, export.Raw) else model
    export.to_onnx(raw, path, {}, kernels=True, **options)
    return raw, onnx.load(path)


def nodes(model):
    return [node.op_type for node in model.graph.node if node.domain == "saccade"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linglo_nano", {"KeyOnlyAttention": 5, "FeedForward": 5}),
        ("qna_nano", {"LearnedQueries": 6, "FeedForward": 8}),
        ("sasa_nano", {"LocalAttention": 7}),
    ],
)
def test_models_at_any_size(name, expected, tmp_path):
    torch.manual_seed(0)
    model = export.prepared(saccade.build(name))
    raw, graph = written(model, tmp_path / "net.onnx")
    counts = {kind: nodes(graph).count(kind) for kind in expected}
    assert counts == expected
    for threads in (1, 2):
        assert export.apart(raw, export.runner(tmp_path / "net.onnx", threads)) < 1e-5


class Maps(nn.Module):
    """A layer between pictures and a vector."""

    def __init__(self, layer, last=False):
        super().__init__()
        self.first, self.layer, self.last = nn.Conv2d(3, 16, 1), layer, last

    def forward(self, x):
        x = self.first(x)
        y = self.layer(x.permute(0, 2, 3, 1)) if self.last else self.layer(x)
        return y.mean((1, 2) if self.last else (2, 3))


LAYERS = {
    "SASA with two tables": lambda: Maps(
        StandAloneAttention(16, heads=2, window=5, shared=False, border="mask")
    ),
    "SASA without keys": lambda: Maps(StandAloneAttention(16, heads=4, window=3, content=False)),
    "SASA without positions": lambda: Maps(StandAloneAttention(16, heads=4, position="none")),
    "QnA by two": lambda: Maps(LearnedQueryAttention(16, heads=4, window=3, stride=2), last=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, tmp_path):
    torch.manual_seed(0)
    raw, graph = written(LAYERS[name](), tmp_path / "net.onnx")
    assert len(nodes(graph)) == 1
    assert export.apart(raw, export.runner(tmp_path / "net.onnx")) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sasa_resnet26", "qna_t", "linglo_b0", "linglo_b0_chhh"])
def test_whole_models(name, tmp_path):
    torch.manual_seed(0)
    raw, graph = written(export.prepared(saccade.build(name)), tmp_path / "net.onnx")
    assert nodes(graph)
    assert export.apart(raw, export.runner(tmp_path / "net.onnx")) < 1e-5


def test_what_no_kernel_takes_is_written_in_onnx_own_operators(tmp_path):
    wide = StandAloneAttention(16, 130, heads=1, window=3)  # a head wider than the kernel takes
    raw, graph = written(Maps(wide), tmp_path / "net.onnx")
    assert nodes(graph) == []
    assert export.apart(raw, export.runner(tmp_path / "net.onnx")) < 1e-5


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(saccade.kernels())
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def of_one_node(kind, shapes, **attributes):
    """A graph of one node whose inputs are fed."""
    words = [f"in{i}" if shape else "" for i, shape in enumerate(shapes)]
    inputs = [
        helper.make_tensor_value_info(w, TensorProto.FLOAT, [None] * len(shape))
        for w, shape in zip(words, shapes, strict=True)
        if shape
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(kind, words, ["y"], domain="saccade", **attributes)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("saccade", 1)]
    graph = helper.make_graph([node], "one", inputs, [out])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def fed(shapes):
    chance = np.random.default_rng(0)
    return {
        f"in{i}": chance.standard_normal(shape, np.float32)
        for i, shape in enumerate(shapes)
        if shape
    }


SQUARE, LINE = (16, 16), (16,)
RIGHT = {
    "LocalAttention": (
        [(1, 8, 5, 5), (1, 8, 5, 5), (1, 8, 5, 5), (1, 3, 2), (1, 3, 2)],
        {"heads": 2, "window": 3, "mask": 1},
    ),
    "LearnedQueries": (
        [(1, 5, 5, 4), (10, 4), (10,), (3, 3, 2, 2), (3, 3, 2, 2), (5, 6), (5,)],
        {"stride": 1, "padding": 1},
    ),
    "FeedForward": (
        [(1, 5, 5, 8), (16, 8), LINE, (8, 16), (8,), (9, 16), LINE, (8,), (8,)],
        {"tanh": 0, "eps": 1e-6},
    ),
    "KeyOnlyAttention": (
        [(1, 5, 5, 16), LINE, LINE, (2, 16), SQUARE, LINE, SQUARE, LINE, SQUARE, SQUARE, LINE],
        {"eps": 1e-6},
    ),
    "BlockAttention": (
        [(1, 3, 6, 5), (32, 3), (32, 3), (16, 32, 3), (7, 8), (7, 8), (32,), (32,)],
        {"heads": 2, "mask": 1},
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_shapes_that_do_not_fit_are_refused_and_never_read(kind):
    shapes, attributes = RIGHT[kind]
    right = session(of_one_node(kind, shapes, **attributes))
    assert np.isfinite(right.run(None, fed(shapes))[0]).all()
    chance = np.random.default_rng(1)
    for i in range(len(shapes)):
        for _ in range(4):
            other = list(shapes)
            axis = chance.integers(len(shapes[i]))
            change = int(chance.choice([-1, 1, 7]))
            other[i] = tuple(max(0, n + change * (a == axis)) for a, n in enumerate(shapes[i]))
            y, sentence = answer(right, fed(other))
            if y is None:
                assert "saccade: " in sentence
            else:  # the map may have another size, and key-only attention other heads
                assert i == 0 or (kind, i) == ("KeyOnlyAttention", 3), f"{kind} took {other}"
                assert np.isfinite(y).all()


def answer(session, values):
    """What it gives, or why it does not."""
    try:
        return session.run(None, values)[0], ""
    except Exception as error:  # ONNX Runtime's own
        return None, str(error)


def test_attributes_out_of_bounds_are_refused():
    shapes, attributes = RIGHT["LocalAttention"]
    for change in ({"heads": 0}, {"heads": 3}, {"window": 99}, {"window": -1}):
        graph = of_one_node("LocalAttention", shapes, **{**attributes, **change})
        with pytest.raises(Exception, match="saccade: "):
            session(graph).run(None, fed(shapes))


@pytest.mark.parametrize(
    ("kind", "change", "sizes"),
    [
        ("FeedForward", {}, {1: (0, 8), 2: (0,), 3: (8, 0), 5: (9, 0), 6: (0,)}),  # nothing hidden
        ("FeedForward", {}, {3: (0, 16), 4: (0,), 7: (), 8: ()}),
        ("LearnedQueries", {"padding": 10**9}, {}),
        ("LearnedQueries", {"padding": 759_250_124}, {}),  # whose map's bytes are zero modulo 2**64
        ("LearnedQueries", {"padding": 2**62}, {}),
        ("LearnedQueries", {"stride": 2**32}, {}),
        ("LearnedQueries", {}, {3: (3, 3, 0, 2), 4: (3, 3, 0, 2), 5: (5, 10)}),
        ("LearnedQueries", {}, {5: (0, 6), 6: (0,)}),
        ("BlockAttention", {}, {1: (0, 3), 2: (0, 3), 3: (16, 0, 3), 6: (0,), 7: (0,)}),
    ],
)
def test_sizes_that_no_memory_holds_or_that_are_nothing(kind, change, sizes):
    """A file from a stranger says them; no kernel may see them."""
    shapes, attributes = RIGHT[kind]
    shapes = [sizes.get(i, shape) for i, shape in enumerate(shapes)]
    graph = of_one_node(kind, shapes, **{**attributes, **change})
    y, sentence = answer(session(graph), fed(shapes))
    assert y is None
    assert "saccade: " in sentence


def test_an_empty_batch(tmp_path):
    _, _ = written(export.prepared(saccade.build("linglo_nano")), tmp_path / "net.onnx")
    image = np.zeros((0, 3, 64, 64), np.float32)
    assert session(tmp_path / "net.onnx").run(None, {"image": image})[0].shape == (0, 1000)


def test_weights_that_are_fed_may_change():
    shapes, attributes = RIGHT["FeedForward"]
    run, values = session(of_one_node("FeedForward", shapes, **attributes)), fed(shapes)
    first = run.run(None, values)[0]
    values["in1"] *= 2  # the same memory, other contents
    second = run.run(None, values)[0]
    assert not np.allclose(first, second)
    fresh = session(of_one_node("FeedForward", shapes, **attributes))
    assert np.array_equal(second, fresh.run(None, values)[0])


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no compiler")
def test_the_example_in_c(tmp_path):
    """examples/onnx_kernels.cpp against the library that pip installed, without Python or torch."""
    runtime = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    (tmp_path / "libonnxruntime.so.1").symlink_to(runtime)  # what it calls itself
    program = tmp_path / "run"
    subprocess.run(
        [*build.compiler(), "-std=c++17", "-O1", str(ROOT / "examples" / "onnx_kernels.cpp"),
         "-I", str(ROOT / "tests"), str(runtime), f"-Wl,-rpath,{tmp_path}",
         "-o", str(program)],
        check=True,
    )  # fmt: skip
    torch.manual_seed(0)
    raw, _ = written(export.prepared(saccade.build("sasa_nano")), tmp_path / "net.onnx")
    copy = shutil.copy(saccade.kernels(), tmp_path / "kernels.so")
    words = [str(program), str(tmp_path / "net.onnx"), str(copy)]
    result = subprocess.run(words, capture_output=True, text=True, check=True, env={})
    y = np.array(result.stdout.split(), np.float32)
    with torch.no_grad():
        expected = raw(torch.full((1, 3, 96, 128), 0.5))[0].numpy().ravel()
    np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max())
    bad = subprocess.run([*words[:2], "/no/such.so"], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "such.so" in bad.stderr
