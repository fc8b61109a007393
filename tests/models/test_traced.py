"""Tracers, exporters and odd sizes: jit.trace, fx, export, empty batches, heads of width one."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import timm
import torch
from torch.export import Dim

import saccade
from saccade import weights
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.window import WindowAttention
from tests.layers import by_calls
from tests.layers.by_calls import LAYERS

ROOT = Path(__file__).resolve().parents[2]
NANOS = saccade.names("*_nano")
nanos = pytest.mark.parametrize("name", NANOS)
every_layer = pytest.mark.parametrize("name", LAYERS)


def build(name):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, drop_path_rate=0.0).eval()


def image(H=64, W=64, batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, 3, H, W)


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


# -- torch.jit.trace ------------------------------------------------------------------------------


@nanos
@pytest.mark.filterwarnings("ignore")
def test_a_trace_computes_and_learns(name, untyped):
    """With gradients recorded, and with jit's own check that two traces agree."""
    model, x = build(name), image()
    traced = torch.jit.trace(model, x)
    close(traced(x), model(x))
    traced(x).square().mean().backward()
    assert {n for n, p in model.named_parameters() if p.grad is None} == set()


@every_layer
@pytest.mark.filterwarnings("ignore")
def test_layers_can_be_traced(name, untyped):
    case = LAYERS[name]
    layer, x = case.built().eval(), case.image()
    close(torch.jit.trace(layer, x)(x), layer(x))


LOAD = """
import json, sys, torch
imports, *paths = sys.argv[1:]
if imports == "saccade":
    import saccade
torch.set_num_threads(1)
results = []
for path in paths:
    try:
        results.append(torch.jit.load(path)(torch.ones(1, 3, 64, 64)).flatten().tolist())
    except Exception as error:
        results.append(str(error))
print(json.dumps(results))
"""


def load_elsewhere(imports, paths):
    """What another process makes of these files: lists of numbers, or messages."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, imports, *map(str, paths)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_saved_trace_runs_or_says_what_it_needs(untyped, tmp_path):
    """After `import saccade` it runs. Without, it runs too, or the trace or the error says so."""
    x, paths, wants, sentences = torch.ones(1, 3, 64, 64), [], [], []
    for name in NANOS:
        model = build(name)
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            paths.append(tmp_path / f"{name}.pt")
            torch.jit.trace(model, x).save(paths[-1])
            wants.append(model(x).flatten())
        sentences.append(" ".join(str(w.message) for w in caught))
    for got, want in zip(load_elsewhere("saccade", paths), wants, strict=True):
        assert not isinstance(got, str), got
        close(torch.tensor(got), want)
    for got, want, words in zip(load_elsewhere("nothing", paths), wants, sentences, strict=True):
        if isinstance(got, str):
            assert "import saccade" in got + words, got
        else:
            close(torch.tensor(got), want)


# -- torch.fx -------------------------------------------------------------------------------------


@nanos
def test_fx_traces_the_whole_model(name, untyped):
    """`symbolic_trace` alone, without a word about leaves."""
    model, x = build(name), image()
    traced = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        close(traced(x), model(x))
    traced(x).square().mean().backward()
    assert {n for n, p in traced.named_parameters() if p.grad is None} == set()


# -- torch.export ---------------------------------------------------------------------------------


@nanos
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_export_with_named_sizes(name, strict, untyped):
    model = build(name)
    sizes = {0: Dim("batch", min=1, max=64), 2: Dim("height", min=32, max=512)}
    sizes[3] = Dim("width", min=32, max=512)
    with torch.no_grad():
        program = torch.export.export(
            model, (image(96, 128),), dynamic_shapes=(sizes,), strict=strict
        )
        for shape in ((64, 64, 1), (96, 128, 3), (97, 61, 2), (33, 100, 1)):
            x = image(*shape)
            close(program.module()(x), model(x))


# -- odd sizes ------------------------------------------------------------------------------------


@nanos
@pytest.mark.parametrize("train", [False, True])
def test_an_empty_batch(name, train):
    model = build(name)
    normed = any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    model.train(train and not normed)  # BatchNorm itself refuses to learn from nothing
    x = image(batch=0).requires_grad_()
    y = model(x)
    assert y.shape == (0, 5)
    y.sum().backward()
    assert x.grad.shape == x.shape
    for n, p in model.named_parameters():
        assert p.grad is None or not p.grad.any(), n
    with torch.no_grad():
        assert model(x).shape == (0, 5)
        assert [m.shape[0] for m in model.backbone(x)] == [0] * 4


@every_layer
def test_an_empty_batch_of_a_layer(name):
    case = LAYERS[name]
    layer, x = case.built().eval(), case.image(0).requires_grad_()
    y = layer(x)
    one = layer(case.image(1))
    assert y.shape == (0, *one.shape[1:])
    y.sum().backward()
    assert x.grad.shape == x.shape
    for n, p in layer.named_parameters():
        assert p.grad is None or not p.grad.any(), n
    with torch.no_grad():
        assert layer(x).shape == y.shape


THIN = {
    "key_only": (lambda: KeyOnlyAttention(6, 6), by_calls.key_only),
    "key_only_single": (lambda: KeyOnlyAttention(1, 1), by_calls.key_only),
    "key_only_16": (lambda: KeyOnlyAttention(16, 16), by_calls.key_only),
    "qna": (lambda: LearnedQueryAttention(6, 6), by_calls.learned_queries),
    "qna_stride": (lambda: LearnedQueryAttention(16, 16, stride=2), by_calls.learned_queries),
    "qna_up": (lambda: LearnedQueryUpsampling(6, 6), by_calls.learned_upsampling),
    "sasa": (
        lambda: StandAloneAttention(6, heads=6, window=3, position="none"),
        by_calls.stand_alone,
    ),
    "window": (lambda: WindowAttention(6, 6, 3), by_calls.window_attention),
    "dot": (lambda: DotProductAttention(6, 6), by_calls.dot_product),
}


@pytest.mark.parametrize("name", THIN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_heads_of_width_one(name, dtype):
    make, equation = THIN[name]
    torch.manual_seed(0)
    layer = make().to(dtype)
    channels = next(m for m in layer.modules() if hasattr(m, "weight")).weight.shape[1]
    shape = (2, channels, 7, 9) if name == "sasa" else (2, 7, 9, channels)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = layer(x)
    y.square().sum().backward()
    x64 = x.detach().double().requires_grad_()
    grads = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    want = equation(layer.double(), x64)
    want.square().sum().backward()
    tolerances = {"rtol": 1e-3, "atol": 1e-3 * x64.grad.abs().max().item()}
    torch.testing.assert_close(y.double(), want, **tolerances)
    torch.testing.assert_close(x.grad.double(), x64.grad, **tolerances)
    assert all(g is not None and g.isfinite().all() for g in grads)


# -- cards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", weights.classifiers())
def test_the_card_of_a_trained_model_knows_its_map(tag):
    model = timm.create_model(tag, pretrained=True).eval()
    for card in (model.pretrained_cfg, timm.get_pretrained_cfg(tag).to_dict()):
        x = torch.randn(1, *card["input_size"])
        with torch.no_grad():
            features = model.forward_features(x)
            assert model(x).shape == (1, card["num_classes"])
        assert tuple(features.shape[2:]) == tuple(card["pool_size"])


# -- without kernels ------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_of_it_without_kernels():
    if os.environ.get("SACCADE_NATIVE") == "0":
        pytest.skip("this is the process without kernels")
    options = ["-n", "0", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", "empty or width or fx"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__],
        env={**os.environ, "SACCADE_NATIVE": "0"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:]
