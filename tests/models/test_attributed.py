"""What copies, averages, shards, compiles and explains models takes ours as any other."""

import copy
import socket
import warnings

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
from captum.attr import IntegratedGradients, LayerActivation, LayerGradCam
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from timm.utils import ModelEmaV3
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

import saccade

NANOS = saccade.names("*_nano")
nanos = pytest.mark.parametrize("name", NANOS)


def build(name):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, drop_path_rate=0.0)


def image(side=64, batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, 3, side, side)


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def projections(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


# -- explanations ---------------------------------------------------------------------------------


@nanos
def test_integrated_gradients_add_up(name):
    """Completeness: attributions sum to the difference that the image makes."""
    model, x = build(name).eval(), image(48)
    base = 0.9 * x + 0.1 * x.flip(0)
    attribution, delta = IntegratedGradients(model).attribute(
        x, base, target=1, n_steps=48, internal_batch_size=16, return_convergence_delta=True
    )
    with torch.no_grad():
        difference = (model(x) - model(base))[:, 1]
    assert attribution.shape == x.shape
    assert (delta.abs() < 0.02 * difference.abs().max()).all()


@nanos
@pytest.mark.parametrize("grad", [True, False])
def test_activations_of_every_projection(name, grad):
    """captum reads a layer through a forward hook: it must hear of every linear layer."""
    model, x = build(name).eval(), image(40, batch=1)
    seen = {}
    handles = [
        m.register_forward_hook(lambda _, x, y, n=n: seen.__setitem__(n, y.detach()))
        for n, m in projections(model).items()
    ]
    with torch.set_grad_enabled(grad):
        model(x)
    for handle in handles:
        handle.remove()
    assert seen.keys() == projections(model).keys()
    for n in list(seen)[:: max(1, len(seen) // 8)]:  # and captum alone, on some of them
        got = LayerActivation(model, model.get_submodule(n)).attribute(x)
        torch.testing.assert_close(got, seen[n], rtol=1e-3, atol=1e-4)


@nanos
def test_gradients_at_inner_projections(name):
    model, x = build(name).eval(), image(40, batch=1)
    parts = list(projections(model))
    for n in parts[:: max(1, len(parts) // 10)]:
        got = LayerGradCam(model, model.get_submodule(n)).attribute(x, target=1)
        assert got.isfinite().all(), n


@nanos
def test_grad_cam_draws_maps(name):
    model, x = build(name).eval(), image()
    target = model.backbone.stages[-2]
    with GradCAM(model=model, target_layers=[target]) as cam:
        drawn = cam(input_tensor=x, targets=[ClassifierOutputTarget(1)] * 2)
    assert drawn.shape == (2, 64, 64)
    assert np.isfinite(drawn).all()
    assert drawn.max() > 0


# -- copies and averages --------------------------------------------------------------------------


@nanos
def test_copies_are_independent(name):
    model, x = build(name).eval(), image()
    handle = model.head.register_forward_hook(lambda m, x, y: y * 2)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
        handle.remove()
        assert error(twin(x), 2 * model(x)) < 1e-6
        for p in twin.parameters():
            p.add_(0.1)
        assert error(twin(x), model(x)) > 1e-3


@nanos
def test_averages_follow(name):
    model, x = build(name).train(), image()
    ema, swa = ModelEmaV3(model, decay=0.5), AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    weights = [[p.detach().clone() for p in model.parameters()]]
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        ema.update(model)
        swa.update_parameters(model)
        weights.append([p.detach().clone() for p in model.parameters()])
    for p, a, b, c in zip(ema.module.parameters(), *weights, strict=True):
        torch.testing.assert_close(p, 0.25 * a + 0.25 * b + 0.5 * c, rtol=1e-4, atol=1e-6)
    for p, _, b, c in zip(swa.module.parameters(), *weights, strict=True):
        torch.testing.assert_close(p, (b + c) / 2, rtol=1e-4, atol=1e-6)
    expected = copy.deepcopy(model).eval()
    expected.load_state_dict(ema.module.state_dict())
    with torch.no_grad():
        assert torch.equal(ema.module.eval()(x), expected(x))


# -- compilers and shards -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["linglo_nano", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qna_nano", "sasa_nano"))],
)
def test_compiling_leaves_the_model_as_it_was(name, untyped):
    """And a compiled model reads its weights at every call."""
    torch._dynamo.reset()
    model, x = build(name).eval(), image(48)
    inner = next(m for n, m in projections(model).items() if ".mix." in n)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        before = model(x)
        assert error(compiled(x), before) < 1e-5
        assert torch.equal(model(x), before)
        inner.weight.mul_(1.5)
        assert error(model(x), before) > 1e-4
        assert error(compiled(x), model(x)) < 1e-5


def sharded(rank, world, port, name, whole, results):
    """The gradients of a second step, with every projection, stage and the whole model sharded."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    try:
        import saccade  # noqa: F401  (a spawned process registers the models anew)

        mesh = init_device_mesh("cpu", (world,))
        model = build(name).train()
        parts = [] if whole else projections(model).values()
        for module in [*parts, *model.backbone.stages, model]:
            fully_shard(module, mesh=mesh)
        second_step(model)
        state = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
        if rank == 0:
            results.update(state)
    finally:
        dist.destroy_process_group()


def second_step(model):
    """Leaves the gradients of a second training step in the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad()
        model(image()).square().mean().backward()


def compare_with_unsharded(name, state):
    model = build(name).train()
    second_step(model)
    want = {n: p.grad for n, p in model.named_parameters()}
    assert state.keys() == want.keys()
    together = [torch.cat([grads[n].flatten() for n in want]) for grads in (state, want)]
    assert error(*together) < 1e-2  # BatchNorm over two small maps makes rounding large


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@nanos
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "parts"])
def test_sharded_training_is_the_same(name, whole):
    state = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sharded(0, 1, free_port(), name, whole, state)
    compare_with_unsharded(name, state)


@pytest.mark.slow
@nanos
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "parts"])
def test_sharded_training_is_the_same_in_two_processes(name, whole):
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        results, port = manager.dict(), free_port()
        torch.multiprocessing.spawn(
            sharded, args=(2, port, name, whole, results), nprocs=2, join=True
        )
        state = dict(results)
    compare_with_unsharded(name, state)
