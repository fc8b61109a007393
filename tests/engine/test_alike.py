"""A stranger may write a checkpoint whose checksum is right and whose values are not."""

import copy

import pytest
import torch

from saccade.engine.alike import check_alike, check_optimiser
from saccade.engine.optim import optimiser
from saccade.recipes.recipe import Optim
from saccade.tasks.classify.task import ClassifyTask

OWN = {"rate": 0.1, "name": "x", "best": None, "pair": (1, True), "sums": torch.zeros(2, 3)}


@pytest.mark.parametrize(
    "read",
    [
        {**OWN, "rate": 3, "best": 0.5},
        {**OWN, "rate": None, "pair": [2, False]},
        {**OWN, "sums": torch.ones(2, 3), "of another version": object()},
        {"name": "y"},
    ],
)
def test_values_of_the_same_kind_may_differ(read):
    check_alike(OWN, read, "state")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({**OWN, "rate": "fast"}, "its state.rate is 'fast', where 0.1 should be"),
        ({**OWN, "rate": 10**30}, "its state.rate is 1000"),
        ({**OWN, "name": 7}, "its state.name is 7"),
        ({**OWN, "pair": (1, True, 3)}, "its state.pair is a tuple of 3"),
        ({**OWN, "pair": (1, torch.ones(3))}, r"its state.pair.1 is a tensor of \(3,\) float32"),
        ({**OWN, "sums": torch.zeros(3, 2)}, r"its state.sums is a tensor of \(3, 2\)"),
        ({**OWN, "sums": torch.zeros(2, 3).int()}, r"its state.sums is a tensor of \(2, 3\) int32"),
        ({**OWN, "sums": 0.0}, "its state.sums is 0.0"),
        ([], "its state is a list of 0"),
    ],
)
def test_values_of_another_kind_are_named(read, message):
    with pytest.raises(TypeError, match=message):
        check_alike(OWN, read, "state")


def stepped():
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
    optimiser = torch.optim.AdamW(parameters, fused=True)
    sum(p.square().sum() for p in parameters).backward()
    optimiser.step()
    return optimiser


def test_an_optimisers_own_state_passes_before_and_after_a_step():
    optimiser = stepped()
    fresh = torch.optim.AdamW(
        [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
    )
    check_optimiser(optimiser, optimiser.state_dict())
    check_optimiser(fresh, optimiser.state_dict())
    check_optimiser(optimiser, fresh.state_dict())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((), 7), (("state",), []), (("param_groups",), []),
        (("state", 0), {}), (("state", 0), 7), (("state", 9), {"step": torch.tensor(1.0)}),
        (("state", 0, "exp_avg"), torch.zeros(3)),  # a fused step would read beyond its end
        (("state", 0, "exp_avg"), torch.zeros(2, 3, dtype=torch.uint8)),
        (("state", 1, "step"), 3), (("state", 1, "step"), torch.zeros(7)),
        (("param_groups", 0, "lr"), "fast"), (("param_groups", 0, "params"), [0, 0]),
        (("param_groups", 0, "params"), [0, 10**40]), (("param_groups", 0, "betas"), (0.9,)),
    ],
)  # fmt: skip
def test_another_optimisers_state_is_refused(place, value):
    optimiser = stepped()
    state = copy.deepcopy(optimiser.state_dict())
    at = state
    for key in place[:-1]:
        at = at[key]
    if place:
        at[place[-1]] = value
    with pytest.raises(TypeError, match="its optimiser"):
        check_optimiser(optimiser, state if place else value)


def test_muons_state_fits_muon_and_a_note_of_another_kind_does_not():
    task = ClassifyTask(torch.nn.Sequential(torch.nn.Linear(16, 16)), tuple("abcd"))
    muon = optimiser(task, Optim(name="muon", lr=0.01), 8)
    task.net(torch.ones(2, 16)).sum().backward()
    muon.step()
    check_optimiser(muon, muon.state_dict())
    state = muon.state_dict()
    state["state"][0]["use_muon"] = [1]
    with pytest.raises(TypeError, match="'use_muon' of parameter 0"):
        check_optimiser(muon, state)
