"""Whole models whose modules somebody wrapped: adapters, hooks, pruning, parametrisation, int8."""

import copy
import itertools
import warnings

import pytest
import timm
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrizations, prune
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

import saccade

NANOS = saccade.names("*_nano")
# The nanos, and the smallest models of what no nano has: an attention stem, dot products.
FEW = [*NANOS, "sasa_resnet26", "linglo_b0_dot"]
nanos = pytest.mark.parametrize("name", NANOS)
few = pytest.mark.parametrize("name", FEW)
all_mostly_slow = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in saccade.names()],
)


def build(name, **options):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, drop_path_rate=0.0, **options)


def image(side=64, batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, 3, side, side)


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


# -- adapters -------------------------------------------------------------------------------------


def with_adapters(model, kinds):
    """LoRA on every module of these kinds that PEFT can merge."""
    targets = [
        n for n, m in model.named_modules() if isinstance(m, kinds) and getattr(m, "groups", 1) == 1
    ]
    torch.manual_seed(2)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=4, target_modules=targets))
    with torch.no_grad():
        for n, p in adapted.named_parameters():
            if "lora_B" in n:
                p.normal_(std=0.05)
    return adapted, targets


def check_adapters(name, kinds):
    model, x = build(name).eval(), image()
    with torch.no_grad():
        base = model(x)
    adapted, targets = with_adapters(model, kinds)
    adapted.requires_grad_().train()
    adapted(x).square().mean().backward()
    adapters = {n: p for n, p in adapted.named_parameters() if "lora_" in n}
    assert len(adapters) == 2 * len(targets)
    assert not [n for n, p in adapters.items() if p.grad is None]
    learning = {  # the others lie behind a ReLU that lets nothing of this image through
        n: p
        for n, p in adapters.items()
        if adapted.get_submodule(n.partition(".lora_")[0]).base_layer.weight.grad.any()
    }
    assert len(learning) >= 0.9 * len(adapters)
    silent = {n for n, p in learning.items() if not p.grad.any()}
    assert not silent, f"{len(silent)} of {len(adapters)} get no gradient"
    adapted.eval()
    with torch.no_grad():
        if any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):  # it saw a batch above
            with adapted.disable_adapter():
                base = adapted(x)
        unmerged = adapted(x)
        assert error(unmerged, base) > 1e-3
        with adapted.disable_adapter():
            assert error(adapted(x), base) < 1e-5
        adapted.merge_adapter()
        assert error(adapted(x), unmerged) < 1e-5
        adapted.unmerge_adapter()
        assert error(adapted(x), unmerged) < 1e-5


@all_mostly_slow
def test_adapters_on_all_linears(name):
    check_adapters(name, nn.Linear)


@all_mostly_slow
def test_adapters_on_all_linears_and_convolutions(name):
    check_adapters(name, (nn.Linear, nn.Conv2d))


# -- hooks ----------------------------------------------------------------------------------------


def called(model):
    """Sub-modules that are functions; the backbone has its own test."""
    skipped = nn.ModuleList
    return {
        n: m
        for n, m in model.named_modules()
        if n not in ("", "backbone") and not isinstance(m, skipped)
    }


def run(model, x, grad):
    with torch.set_grad_enabled(grad):
        y = model(x.detach().requires_grad_(grad))
        if grad:
            y.square().sum().backward()
    return y.detach()


@all_mostly_slow
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks_fire_on_every_module(name, kind):
    model, x = build(name), image(48)
    silent = set()
    for train in (True, False):
        for grad in (True,) if "backward" in kind else (True, False):
            model.train(train)
            seen, handles = set(), []
            for n, m in called(model).items():
                register = getattr(m, f"register_{kind}_hook")
                handles.append(register(lambda *_, n=n, seen=seen: seen.add(n)))
            run(model, x, grad)
            for handle in handles:
                handle.remove()
            silent |= called(model).keys() - seen
    assert not silent, f"{len(silent)} modules are silent"


@nanos
def test_the_backbone_itself_is_called(name):
    """The name by which others reach the maps: `model.backbone`."""
    model, seen = build(name).eval(), []
    model.backbone.register_forward_hook(lambda *_: seen.append(1))
    run(model, image(), False)
    assert seen == [1]


@few
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_global_hooks_see_every_module(name, kind):
    model, x = build(name), image(48)
    for train in (True, False):
        model.train(train)
        seen = set()
        register = getattr(every_module, f"register_module_{kind}_hook")
        handle = register(lambda m, *_, seen=seen: seen.add(id(m)))
        try:
            run(model, x, True)
        finally:
            handle.remove()
        assert {n for n, m in called(model).items() if id(m) not in seen} == set()


@pytest.mark.parametrize(
    ("name", "grad"),
    [
        ("linglo_nano", True),
        *(
            pytest.param(name, grad, marks=pytest.mark.slow)
            for name, grad in itertools.product(saccade.names("*_nano"), (True, False))
            if (name, grad) != ("linglo_nano", True)
        ),
    ],
)
def test_a_hook_on_one_module_alone_changes_the_output(name, grad):
    model, x = build(name).eval(), image(40, batch=1)
    silent = set()

    def output():
        with torch.set_grad_enabled(grad):
            return model(x).detach()

    base = output()
    for n, m in called(model).items():

        def hook(m, x, y):
            return y + torch.arange(y.numel()).cos().view(y.shape) * y.abs().mean()

        handle = m.register_forward_hook(hook)
        if error(output(), base) < 1e-5:
            silent.add(n)
        handle.remove()
    assert not silent, f"{len(silent)} modules are silent"
    assert error(output(), base) == 0


# -- pruning and parametrisation -----------------------------------------------------------------


def weighted(model):
    """Modules with a weight of at least two axes."""
    return [
        m
        for m in model.modules()
        if isinstance(getattr(m, "weight", None), nn.Parameter) and m.weight.ndim > 1
    ]


def two_steps(model, x):
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        assert {n for n, p in model.named_parameters() if p.grad is None} == set()
        optimizer.step()


@few
@pytest.mark.parametrize("method", [prune.l1_unstructured, prune.random_unstructured])
def test_pruned_models_learn(name, method):
    model, x = build(name).train(), image()
    modules = weighted(model)
    for module in modules:
        method(module, "weight", amount=0.5)
    two_steps(model, x)
    model.eval()
    with torch.no_grad():
        before = model(x)
        for module in modules:
            prune.remove(module, "weight")
            assert (module.weight == 0).float().mean() > 0.4
        assert error(model(x), before) < 1e-5


def old_weight_norm(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.nn.utils.weight_norm(module)


@few
@pytest.mark.parametrize(
    "parametrise",
    [
        parametrizations.weight_norm,
        old_weight_norm,
        parametrizations.spectral_norm,
        torch.nn.utils.spectral_norm,
    ],
    ids=["weight_norm", "old_weight_norm", "spectral_norm", "old_spectral_norm"],
)
def test_parametrised_models_learn(name, parametrise):
    model, x = build(name).eval(), image()
    with torch.no_grad():
        base = model(x)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                parametrise(module)
        if "weight_norm" in parametrise.__name__:
            assert error(model(x), base) < 1e-5
    two_steps(model.train(), x)


@nanos
def test_orthogonal_models_learn(name):
    model, x = build(name).train(), image()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            parametrizations.orthogonal(module)
    two_steps(model, x)


# -- quantisation ---------------------------------------------------------------------------------


@few
@torch.no_grad()
def test_quantize_dynamic(name):
    model, x = build(name).eval(), image()
    base = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coded = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    linears = [n for n, m in model.named_modules() if type(m) is nn.Linear]
    seen = set()
    for n in linears:
        module = coded.get_submodule(n)
        assert type(module).__module__.startswith("torch.ao")
        module.register_forward_hook(lambda *_, n=n: seen.add(n))
    assert 0 < error(coded(x), base) < 0.15
    assert seen == set(linears)


@few
@pytest.mark.parametrize(
    "config",
    [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig],
    ids=lambda c: c.__name__,
)
@torch.no_grad()
def test_torchao_int8(name, config):
    model, x = build(name).eval(), image()
    base = model(x)
    coded = copy.deepcopy(model)
    quantize_(coded, config())
    assert 0 < error(coded(x), base) < 0.15
