"""Derivatives beyond the first, of layers and of the three nanos, with kernels and without.

Second derivatives, per-sample gradients (`vmap` of `grad`), forward-mode derivatives and Hessians.
The last test runs this file again in a process that has no kernels.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch.autograd import forward_ad, gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.functional import cross_entropy

import saccade
from saccade.layers.sasa import StandAloneAttention
from tests.layers.by_calls import LAYERS

ROOT = Path(__file__).resolve().parents[2]
NANOS = ["linglo_nano", "qna_nano", "sasa_nano"]
nanos = pytest.mark.parametrize("name", NANOS)
every_layer = pytest.mark.parametrize("name", LAYERS)

assert set(NANOS) == set(saccade.names("*_nano"))


def build(name, dtype=torch.float32):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, drop_path_rate=0.0).to(dtype).eval()


def image(side=32, batch=2, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(batch, 3, side, side).to(dtype)


def error(got, want):
    assert got.shape == want.shape
    size = want.double().norm().clamp_min(1e-10)  # where nothing is expected, nothing may come
    return ((got.double() - want.double()).norm() / size).item()


# -- layers ---------------------------------------------------------------------------------------


def built(name):
    """In eval mode; dot products without torch's fused attention, which derives but once."""
    layer = LAYERS[name].built().eval()
    if name == "dot":
        layer.fused = False
    return layer


def small(name):
    return built(name).double(), LAYERS[name].image(1, 4, 4).double()


@every_layer
def test_second_derivatives_of_layers(name):
    """In float64, against finite differences."""
    layer, x = small(name)
    x.requires_grad_()
    assert gradgradcheck(layer, (x,), nondet_tol=1e-9, fast_mode=True)


@every_layer
def test_second_derivatives_of_layers_in_float32(name):
    """As kernels compute them, against float64: the gradient of a gradient's length."""
    case = LAYERS[name]
    results = []
    for dtype in (torch.float32, torch.float64):
        layer, x = built(name).to(dtype), case.image(1, 8, 8).to(dtype).requires_grad_()
        weights = [x, *layer.parameters()]
        function = layer if dtype == torch.float32 else lambda x, e=layer: case.by_calls(e, x)
        first = torch.autograd.grad(
            function(x).square().sum(), weights, create_graph=True, allow_unused=True
        )
        length = sum(g.square().sum() for g in first if g is not None)
        results.append(torch.autograd.grad(length, weights, allow_unused=True))
    sizes = [0 if g is None else g.norm() for g in results[1]]
    for got, want, size in zip(*results, sizes, strict=True):
        if size > 1e-6 * max(sizes):
            assert (got.double() - want).norm() < 2e-3 * size + 1e-5 * max(sizes)


@every_layer
def test_forward_derivatives_of_layers(name):
    """jvp and dual numbers against central differences."""
    layer, x = small(name)
    torch.manual_seed(2)
    direction = torch.randn_like(x)
    step = 1e-6
    with torch.no_grad():
        want = (layer(x + step * direction) - layer(x - step * direction)) / (2 * step)
    assert error(jvp(layer, (x,), (direction,))[1], want) < 1e-5
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        assert error(forward_ad.unpack_dual(layer(dual)).tangent, want) < 1e-5
    got = jvp(built(name), (x.float(),), (direction.float(),))[1]
    assert error(got, want) < 1e-3


@every_layer
def test_hessians_of_layers(name):
    layer, x = small(name)
    x = x[..., :1, :2, :] if LAYERS[name].channels_last else x[..., :1, :2]

    def loss(x):
        y = layer(x)
        return (y * torch.arange(y.numel()).cos().view(y.shape)).sum()

    got = hessian(loss)(x).reshape(x.numel(), x.numel())
    torch.testing.assert_close(got, got.mT, rtol=1e-6, atol=1e-8)
    direction = torch.ones_like(x)
    inputs = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(inputs), inputs, create_graph=True)
    (want,) = torch.autograd.grad((g * direction).sum(), inputs, allow_unused=True)
    want = torch.zeros_like(x) if want is None else want
    torch.testing.assert_close(got @ direction.flatten(), want.flatten(), rtol=1e-6, atol=1e-8)


@every_layer
def test_per_sample_gradients_of_layers(name):
    case = LAYERS[name]
    layer, x = built(name), case.image(3)
    parameters = {n: p.detach() for n, p in layer.named_parameters()}

    def loss(parameters, x):
        y = functional_call(layer, parameters, (x[None],))
        return (y * torch.arange(y.numel()).cos().view(y.shape)).sum()

    got = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    singles = [grad(loss)(parameters, sample) for sample in x]
    largest = max(single[n].abs().max() for single in singles for n in single)
    for n in parameters:
        want = torch.stack([single[n] for single in singles])
        torch.testing.assert_close(got[n], want, rtol=1e-3, atol=1e-5 * largest.item())


TILED = {  # where no kernel takes local attention
    "window_1": {"window": 1},
    "wide_head": {"heads": 1, "out": 160},
    "tiled": {"backend": "tiled"},
    "unfolded": {"backend": "unfolded"},
}


@pytest.mark.parametrize("options", TILED.values(), ids=TILED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_second_derivatives_of_local_attention_without_its_kernel(options, dtype):
    torch.manual_seed(0)
    options = {"out": 8, "heads": 2, "window": 3, **options}
    layer = StandAloneAttention(4, options.pop("out"), **options)
    results = []
    for kind in (dtype, torch.float64):
        own = StandAloneAttention(4, layer.query.out_channels, **options)
        own.load_state_dict(layer.state_dict())
        own.to(dtype).to(kind)
        torch.manual_seed(1)
        x = (torch.randn(1, 4, 4, 5) / 4).to(dtype).to(kind).requires_grad_()
        (g,) = torch.autograd.grad(own(x).square().sum() / 32, x, create_graph=True)
        results.append(torch.autograd.grad(g.square().sum(), [x, *own.parameters()]))
    tolerance = {torch.float16: 0.05, torch.bfloat16: 0.3}.get(dtype, 1e-3)
    for got, want in zip(*results, strict=True):
        assert got.isfinite().all()
        assert error(got, want) < tolerance


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_second_derivatives_of_local_attention_in_half_precision(dtype):
    torch.manual_seed(0)
    layer, x = (
        StandAloneAttention(8, heads=2, window=3).to(dtype),
        torch.randn(1, 8, 6, 6).to(dtype),
    )
    x.requires_grad_()
    (g,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    second = torch.autograd.grad(g.square().sum(), [x, *layer.parameters()])
    assert all(s.isfinite().all() and s.any() for s in second)


# -- models ---------------------------------------------------------------------------------------


@nanos
def test_second_derivatives_of_models(name):
    """Hessian times a direction in weight space, against a difference of gradients in float64."""
    model, x = build(name, torch.float64), image(dtype=torch.float64)
    weights = list(model.parameters())
    torch.manual_seed(3)
    direction = [torch.randn_like(p) * p.detach().abs().mean().clamp_min(1e-3) for p in weights]

    def gradient(graph=False):
        return torch.autograd.grad(model(x).square().mean(), weights, create_graph=graph)

    slope = sum((g * d).sum() for g, d in zip(gradient(True), direction, strict=True))
    got = torch.autograd.grad(slope, weights, allow_unused=True)
    step, sides = 1e-6, []
    for sign in (1, -2):
        with torch.no_grad():
            for p, d in zip(weights, direction, strict=True):
                p.add_(d, alpha=sign * step)
        sides.append(gradient())
    wants = [(a - b) / (2 * step) for a, b in zip(*sides, strict=True)]
    got = torch.cat(
        [
            torch.zeros_like(w).flatten() if g is None else g.flatten()
            for g, w in zip(got, wants, strict=True)
        ]
    )
    assert error(got, torch.cat([w.flatten() for w in wants])) < 1e-4


@nanos
def test_second_derivatives_of_models_in_float32(name):
    """A gradient penalty, as trainers use it, beside the same in float64."""
    lengths = []
    for dtype in (torch.float32, torch.float64):
        model = build(name, dtype).train()
        x = image(dtype=dtype).requires_grad_()
        (g,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        g.square().sum().backward()
        lengths.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    assert error(*lengths) < 2e-2


@nanos
def test_per_sample_gradients_of_models(name):
    model, x, y = build(name), image(batch=3), torch.tensor([0, 3, 1])
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(parameters, x, y):
        return cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    got = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    for i in range(len(x)):
        model.zero_grad()
        cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        want = {n: p.grad for n, p in model.named_parameters()}
        total = torch.cat([g.flatten() for g in want.values()])
        assert error(torch.cat([got[n][i].flatten() for n in want]), total) < 1e-3


@nanos
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_forward_derivatives_of_models(name, dtype):
    model, x = build(name, dtype), image(dtype=dtype)
    torch.manual_seed(2)
    direction = torch.randn_like(x)
    exact = build(name, torch.float64)
    step = 1e-6
    with torch.no_grad():
        x64, d64 = x.double(), direction.double()
        want = (exact(x64 + step * d64) - exact(x64 - step * d64)) / (2 * step)
    tolerance = 1e-5 if dtype == torch.float64 else 1e-2
    assert error(jvp(model, (x,), (direction,))[1], want) < tolerance
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        assert error(forward_ad.unpack_dual(model(dual)).tangent, want) < tolerance
    # Two backward passes make a forward one.
    inputs, v = x.clone().requires_grad_(), torch.zeros(2, 5, dtype=dtype, requires_grad=True)
    (g,) = torch.autograd.grad(model(inputs), inputs, v, create_graph=True)
    (twice,) = torch.autograd.grad(g, v, direction)
    assert error(twice, want) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize(
    "which", ["nano or local", "not nano and not local"], ids=["models", "layers"]
)
def test_all_of_it_without_kernels(which):
    if os.environ.get("SACCADE_NATIVE") == "0":
        pytest.skip("this is the process without kernels")
    options = ["-n", "0", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", which]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__],
        env={**os.environ, "SACCADE_NATIVE": "0"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:]
