import math

import pytest
import torch
from torch import nn

import saccade
from saccade.engine.optim import Average, groups, optimiser, peak, schedule
from saccade.recipes.recipe import Optim, Schedule
from saccade.tasks.classify.task import ClassifyTask


def task(name="qna_nano"):
    return ClassifyTask(saccade.build(name, num_classes=3), "abc")


def rates(plan, steps=10, lr=2.0):
    optim = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)
    clock = schedule(optim, plan, steps)
    by_iteration = []
    for step in range(plan.epochs * steps):
        clock.step_update(step)
        by_iteration.append(optim.param_groups[0]["lr"])
    return by_iteration


def test_cosine_after_a_linear_warm_up():
    by_step = rates(Schedule(epochs=5, warmup=1, start=0.1, end=0.01))
    for step, rate in enumerate(by_step):
        if step < 10:
            expected = 2 * (0.1 + 0.9 * step / 10)
        else:
            wave = (1 + math.cos(math.pi * (step - 10) / 40)) / 2
            expected = 2 * (0.01 + 0.99 * wave)
        assert rate == pytest.approx(expected, rel=1e-6), step


def test_steps_and_poly_and_constant():
    by_step = rates(Schedule(epochs=4, shape="step", steps=(2, 3), factor=0.5))
    assert by_step == pytest.approx([2.0] * 20 + [1.0] * 10 + [0.5] * 10)
    by_step = rates(Schedule(epochs=4, shape="poly", power=0.9))
    assert by_step == pytest.approx([2 * (1 - s / 40) ** 0.9 for s in range(40)], rel=1e-6)
    assert set(rates(Schedule(epochs=2, shape="constant"))) == {2.0}


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match=r"shorten schedule\.warmup"):
        rates(Schedule(epochs=2, warmup=3))


def test_the_rate_follows_the_batch():
    optim = Optim(name="adamw", lr=5e-4, lr_batch=256)
    assert peak(optim, 1024) == pytest.approx(2e-3)
    assert peak(Optim(name="adamw", lr=5e-4), 1024) == 5e-4
    live = optimiser(task(), optim, 1024)
    assert {g["lr"] for g in live.param_groups} == {2e-3}


@pytest.mark.parametrize(("name", "nesterov"), [("sgd", False), ("nesterov", True)])
def test_momentum_with_and_without_nesterov(name, nesterov):
    live = optimiser(task(), Optim(name=name, lr=1.0, momentum=0.8), 1)
    assert live.param_groups[0]["momentum"] == 0.8
    assert live.param_groups[0]["nesterov"] is nesterov


def test_decay_spares_vectors_and_what_layers_declare():
    t = task()
    for undecayed in [("vectors", "declared"), ("declared",), ()]:
        live = optimiser(t, Optim(name="adamw", lr=1.0, weight_decay=0.1, undecayed=undecayed), 1)
        free = {p for g in live.param_groups if not g["weight_decay"] for p in g["params"]}
        for name, p in t.named_parameters():
            spared = ("declared" in undecayed and name in t.no_weight_decay()) or (
                "vectors" in undecayed and p.ndim <= 1
            )
            assert (p in free) == spared, name
        count = sum(len(g["params"]) for g in live.param_groups)
        assert count == len(list(t.parameters()))


@pytest.mark.parametrize("name", ["linglo_nano", "qna_nano", "sasa_nano"])
def test_early_blocks_learn_more_slowly(name):
    t = task(name)
    live = optimiser(t, Optim(name="adamw", lr=1.0, layer_decay=0.5), 1)
    scale = {p: g["lr_scale"] for g in live.param_groups for p in g["params"]}
    head = [s for p, s in scale.items() if any(p is q for q in t.net.head.parameters())]
    assert set(head) == {1.0}
    first = next(p for n, p in t.named_parameters() if "stages.0" in n or "stem" in n)
    assert scale[first] < 0.1
    clock = schedule(live, Schedule(epochs=1, shape="constant"), 4)
    clock.step_update(1)
    assert {g["lr"] for g in live.param_groups} == set(scale.values())


def test_the_average_follows_is_worn_and_comes_back():
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model, decay=0.5)
    average_of_steps = 0.0
    for step in range(1, 30):
        nn.init.constant_(model.weight, float(step))
        average.update(model)
        keep = min(0.5, (1 + step) / (10 + step))
        average_of_steps = keep * average_of_steps + (1 - keep) * step
    with average.applied_to(model):
        assert model.weight[0, 0].item() == pytest.approx(average_of_steps, rel=1e-5)
    assert model.weight[0, 0].item() == 29
    other = Average(nn.Linear(2, 1, bias=False), 0.5)
    other.load_state_dict(average.state_dict())
    assert torch.equal(other.values["weight"], average.values["weight"])
    assert other.steps == 29


def test_a_backbone_may_learn_more_slowly_than_the_rest():
    model = task()
    names = {p: name for name, p in model.named_parameters()}
    rates = {}
    for group in groups(model, Optim(name="adamw", lr=1.0, backbone=0.1)):
        rates |= {names[p]: group["lr_scale"] for p in group["params"]}
    assert {rate for name, rate in rates.items() if ".backbone." in name} == {0.1}
    assert {rate for name, rate in rates.items() if ".backbone." not in name} == {1.0}
    with pytest.raises(ValueError, match=r"optim\.backbone: this network has no backbone apart"):
        groups(ClassifyTask(nn.Linear(2, 2), ("a", "b")), Optim(name="adamw", lr=1.0, backbone=0.1))


def test_iterations_stand_for_epochs():
    live = optimiser(task(), Optim(name="adamw", lr=1.0), 1)
    plan = Schedule(epochs=1, iterations=50, shape="poly", power=0.9)
    clock = schedule(live, plan, 7)
    for step in (0, 10, 49):
        clock.step_update(step)
        assert live.param_groups[0]["lr"] == pytest.approx((1 - step / 50) ** 0.9)
    with pytest.raises(ValueError, match="the warm-up lies within the epochs"):
        schedule(live, Schedule(epochs=9, iterations=10, warmup=2), 7)


def test_muon_moves_matrices_by_orthogonal_steps_and_the_rest_by_adamw():
    one = task("linglo_cifar")
    optim = Optim(name="muon", lr=0.02, momentum=0.95, weight_decay=0.05, vectors=0.1)
    by_fallback = {g["use_fallback"]: g for g in groups(one, optim)}
    names = {p: name for name, p in one.named_parameters()}
    matrices = [names[p] for g in groups(one, optim) if not g["use_fallback"] for p in g["params"]]
    assert "net.backbone.stem.conv.weight" in matrices
    assert not any(name.startswith("net.head") or name.endswith("bias") for name in matrices)
    assert not any(
        "stages.0.blocks.1.mix.saliency" in name for name in matrices
    )  # four heads are no matrix
    assert by_fallback[True]["lr_scale"] == pytest.approx(0.1)
    assert by_fallback[False]["lr_scale"] == 1.0
    live, net = optimiser(one, optim, 128), one.net
    before = {p: p.detach().clone() for p in net.parameters()}
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    clock = schedule(live, Schedule(epochs=1, shape="constant"), 1)
    clock.step_update(0)
    live.step()
    key = net.backbone.stages[2].blocks[0].mix.key.weight
    step = (before[key] * (1 - 0.02 * 0.05) - key.detach()) / 0.02
    lengths = torch.linalg.svdvals(step)  # near 1 but for the least ones, after five iterations
    assert lengths.max() < 1.3
    assert lengths.median() > 0.6
    bias = net.backbone.stages[2].blocks[0].mix.key.bias
    assert (before[bias] - bias).detach().abs().max() == pytest.approx(0.002, rel=0.01)
