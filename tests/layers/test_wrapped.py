"""A layer is what its modules do: hooks, adapters, pruning, parametrisation, quantisation.

Each test does something to the sub-modules of a layer, and the layer must still be the function
that `by_calls` writes as one call for each sub-module.
"""

import copy
import warnings

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrizations, prune
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

from tests.layers.by_calls import LAYERS

every_layer = pytest.mark.parametrize("name", LAYERS)
with_linears = pytest.mark.parametrize(
    "name",
    [n for n, c in LAYERS.items() if any(isinstance(m, nn.Linear) for m in c.make().modules())],
)
MODES = [(train, grad) for train in (True, False) for grad in (True, False)]


def called(layer):
    """Sub-modules that are functions, by name; lists of modules are never called."""
    return {n: m for n, m in layer.named_modules() if n and not isinstance(m, nn.ModuleList)}


def projections(layer):
    return {n: m for n, m in layer.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


def error(got, want):
    assert got.shape == want.shape
    return ((got.double() - want.double()).abs().max() / want.abs().max()).item()


def wave(like):
    """A fixed pattern, the same in every precision."""
    return torch.arange(like.numel()).cos().view(like.shape).to(like)


def differences(name, change, train=False, tolerance=1e-4):
    """In what a layer with `change` differs from its equation in float64: output and gradients."""
    case = LAYERS[name]
    layer, exact = case.built().train(train), case.built().train(train)
    change(layer)
    change(exact)
    exact.double()
    x = case.image()
    results = []
    for function, image in ((layer, x), (lambda x: case.by_calls(exact, x), x.double())):
        image = image.detach().requires_grad_()
        y = function(image)
        (y * wave(y)).sum().backward()
        results.append((y, image))
    (y, x), (y_exact, x_exact) = results
    errors = {"output": error(y, y_exact), "input's gradient": error(x.grad, x_exact.grad)}
    parameters = dict(layer.named_parameters())
    largest = max(p.grad.abs().max() for p in exact.parameters() if p.grad is not None)
    for n, p in exact.named_parameters():
        if p.grad is None or p.grad.abs().max() < 1e-9 * largest:
            continue  # such as a bias of keys, which cancels in the softmax
        grad = parameters[n].grad
        errors[n] = float("inf") if grad is None else error(grad, p.grad)
    return {n: e for n, e in errors.items() if not e < tolerance}


@every_layer
def test_the_equations_are_those_of_the_layers(name):
    for train in (False, True):
        assert not differences(name, lambda layer: None, train)


# -- hooks ----------------------------------------------------------------------------------------


def register(kind, module, hook):
    return getattr(module, f"register_{kind}_hook")(hook)


def run(layer, x, grad):
    """Forward, and where gradients are recorded backward too."""
    with torch.set_grad_enabled(grad):
        y = layer(x.detach().requires_grad_(grad))
        if grad:
            y.square().sum().backward()
    return y


@every_layer
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_fire_once_on_every_module(name, kind):
    case = LAYERS[name]
    layer, x = case.built(), case.image()
    silent = set()
    for train, grad in MODES:
        if "backward" in kind and not grad:
            continue
        layer.train(train)
        seen, handles = [], []
        for n, m in called(layer).items():
            handles.append(register(kind, m, lambda *_, n=n, seen=seen: seen.append(n)))
        run(layer, x, grad)
        for handle in handles:
            handle.remove()
        silent |= {(n, train, grad, seen.count(n)) for n in called(layer) if seen.count(n) != 1}
    assert not silent


@every_layer
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_a_hook_on_one_module_alone_fires(name, kind):
    case = LAYERS[name]
    layer, x = case.built(), case.image()
    silent = set()
    for train, grad in MODES:
        if "backward" in kind and not grad:
            continue
        layer.train(train)
        for n, m in called(layer).items():
            seen = []
            handle = register(kind, m, lambda *_, seen=seen: seen.append(1))
            run(layer, x, grad)
            handle.remove()
            if len(seen) != 1:
                silent.add((n, train, grad))
    assert not silent


@every_layer
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_global_hooks_see_every_module(name, kind):
    case = LAYERS[name]
    layer, x = case.built(), case.image()
    for train, grad in MODES:
        if "backward" in kind and not grad:
            continue
        layer.train(train)
        seen = []
        register_everywhere = getattr(every_module, f"register_module_{kind}_hook")
        handle = register_everywhere(lambda m, *_, seen=seen: seen.append(m))
        try:
            run(layer, x, grad)
        finally:
            handle.remove()
        assert {n for n, m in called(layer).items() if m not in seen} == set()


@every_layer
def test_a_forward_hook_may_change_the_output(name):
    for part in called(LAYERS[name].built()):

        def change(layer, part=part):
            layer.get_submodule(part).register_forward_hook(lambda m, x, y: y * (1 + wave(y) / 2))

        assert not differences(name, change), part


@every_layer
def test_a_pre_hook_may_change_the_input(name):
    for part in called(LAYERS[name].built()):

        def change(layer, part=part):
            layer.get_submodule(part).register_forward_pre_hook(lambda m, x: (x[0] * 0.7,))

        assert not differences(name, change), part


@every_layer
def test_a_backward_hook_may_change_gradients(name):
    for part in called(LAYERS[name].built()):

        def change(layer, part=part):
            layer.get_submodule(part).register_full_backward_hook(lambda m, x, y: (x[0] * 0.7,))

        assert not differences(name, change), part


# -- adapters -------------------------------------------------------------------------------------


def with_adapters(layer, rank=2, only=None):
    """LoRA on every projection, its second factor not zero."""
    targets = [n for n, m in projections(layer).items() if only is None or n in only]
    torch.manual_seed(3)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets)
    inject_adapter_in_model(config, layer)
    with torch.no_grad():
        for n, p in layer.named_parameters():
            if "lora_B" in n:
                p.normal_(std=0.3)
    return layer


def plain_projections(layer):
    """What PEFT can merge: no groups."""
    return [n for n, m in projections(layer).items() if getattr(m, "groups", 1) == 1]


with_plain_projections = pytest.mark.parametrize(
    "name", [n for n, c in LAYERS.items() if plain_projections(c.make())]
)


@with_plain_projections
@pytest.mark.parametrize("train", [False, True])
def test_adapters_take_part(name, train):
    targets = plain_projections(LAYERS[name].built())
    assert not differences(name, lambda layer: with_adapters(layer, only=targets), train)
    for target in targets:  # and each alone
        assert not differences(name, lambda layer, t=target: with_adapters(layer, only=[t]), train)


@pytest.mark.parametrize("name", ["rpcpe", "feed_position"])
def test_adapters_of_depthwise_branches_take_part(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT says that these cannot be merged

        def change(layer):
            branches = [n for n, m in projections(layer).items() if getattr(m, "groups", 1) > 1]
            with_adapters(layer, rank=layer.get_submodule(branches[0]).groups, only=branches)

        assert not differences(name, change)


@with_plain_projections
def test_merged_adapters_compute_the_same(name):
    case = LAYERS[name]
    layer = case.built().eval()
    x = case.image()
    with torch.no_grad():
        base = layer(x)
        with_adapters(layer, only=plain_projections(layer))
        adapters = [m for m in layer.modules() if hasattr(m, "merge")]
        unmerged = layer(x)
        assert error(unmerged, base) > 1e-2
        for adapter in adapters:
            adapter.merge()
        assert error(layer(x), unmerged) < 1e-5
        for adapter in adapters:
            adapter.unmerge()
            adapter.enable_adapters(False)
        assert error(layer(x), base) < 1e-5


# -- pruning --------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("method", [prune.l1_unstructured, prune.random_unstructured])
def test_pruned_layers_learn(name, train, method):
    """Every parameter pruned: two steps as those of a layer whose weights are masked by hand."""
    case = LAYERS[name]
    layer, exact, x = case.built().train(train), case.built().double().train(train), case.image()
    spots = [(m, n) for m in layer.modules() for n, _ in m.named_parameters(recurse=False)]
    torch.manual_seed(5)
    for module, n in spots:
        method(module, n, amount=0.4)
    masks = {n.removesuffix("_mask"): b for n, b in layer.named_buffers() if n.endswith("_mask")}
    parameters = dict(exact.named_parameters())
    assert masks.keys() == parameters.keys()
    with torch.no_grad():
        for n, p in parameters.items():
            p.mul_(masks[n])
    rate = 1e-2
    optimizer = torch.optim.SGD(layer.parameters(), rate)
    for _ in range(2):
        optimizer.zero_grad()
        exact.zero_grad()
        y, want = layer(x), case.by_calls(exact, x.double())
        assert error(y, want) < 1e-4
        (y * wave(y)).mean().backward()
        (want * wave(want)).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for n, p in parameters.items():
                p.sub_(rate * p.grad * masks[n])
    silent = {n for n, p in layer.named_parameters() if p.grad is None}
    assert not silent
    layer.eval()
    exact.eval()
    for module, n in spots:
        prune.remove(module, n)
    assert {n for n, _ in layer.named_parameters()} == parameters.keys()
    assert error(layer(x), case.by_calls(exact, x.double())) < 1e-4


# -- parametrisations -----------------------------------------------------------------------------


def old_weight_norm(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.nn.utils.weight_norm(module)


def old_spectral_norm(module):
    torch.nn.utils.spectral_norm(module, n_power_iterations=10)


PARAMETRISATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "old_weight_norm": old_weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old_spectral_norm": old_spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


def parametrise(layer, kind, only=None):
    kinds = (
        nn.Linear if kind == "orthogonal" else nn.Linear | nn.Conv2d
    )  # a 1x1 has no matrix there
    for n, module in projections(layer).items():
        if isinstance(module, kinds) and (only is None or n == only):
            torch.manual_seed(7)
            PARAMETRISATIONS[kind](module)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (n, k)
        for k in PARAMETRISATIONS
        for n in (with_linears.args[1] if k == "orthogonal" else LAYERS)
    ],
)
def test_parametrised_layers_compute_and_learn(name, kind):
    train = kind == "old_spectral_norm"  # which knows no norm before it was trained
    assert not differences(name, lambda layer: parametrise(layer, kind), train)
    case = LAYERS[name]
    layer, x = case.built().train(), case.image()
    parametrise(layer, kind)
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        y = layer(x)
        (y * wave(y)).mean().backward()
        silent = {n for n, p in layer.named_parameters() if p.grad is None}
        assert not silent
        optimizer.step()


@every_layer
def test_one_parametrised_module_is_enough(name):
    for part in projections(LAYERS[name].built()):
        for kind in ("weight_norm", "old_weight_norm"):
            assert not differences(name, lambda layer, k=kind, p=part: parametrise(layer, k, p)), (
                part
            )


# -- quantisation ---------------------------------------------------------------------------------


def test_the_table_has_layers_of_linears():
    assert {"key_only", "qna", "feed", "window"} <= set(with_linears.args[1])


@with_linears
@torch.no_grad()
def test_quantize_dynamic(name):
    case = LAYERS[name]
    layer, x = case.built().eval(), case.image()
    base = layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coded = quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    kinds = {n: type(coded.get_submodule(n)) for n, m in projections(layer).items()}
    swapped = [n for n, m in projections(layer).items() if isinstance(m, nn.Linear)]
    assert all(kinds[n].__module__.startswith("torch.ao") for n in swapped)
    seen = []
    for n in swapped:
        coded.get_submodule(n).register_forward_hook(lambda *_, n=n: seen.append(n))
    y = coded(x)
    assert sorted(seen) == sorted(swapped)
    assert 0 < error(y, base) < 0.15
    assert error(coded(x), case.by_calls(coded, x)) < 1e-4


@with_linears
@pytest.mark.parametrize(
    "config",
    [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig],
    ids=lambda c: c.__name__,
)
@torch.no_grad()
def test_torchao_int8(name, config):
    case = LAYERS[name]
    layer, x = case.built().eval(), case.image()
    base = layer(x)
    coded = copy.deepcopy(layer)
    quantize_(coded, config())
    linears = [m for m in coded.modules() if isinstance(m, nn.Linear)]
    assert linears
    assert all(type(m.weight.data) is not torch.Tensor for m in linears)
    assert 0 < error(coded(x), base) < 0.15
    # Activations are coded on the way: what rounds to the other side moves by a step of 8 bits.
    assert error(coded(x), case.by_calls(coded, x)) < (
        1e-3 if config is Int8WeightOnlyConfig else 2e-2
    )
