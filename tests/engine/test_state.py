import pytest
import torch

from saccade.engine import make
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.optim import Average, optimiser
from saccade.engine.run import Run
from saccade.engine.state import TrainingState
from saccade.models.saved import load
from tests.engine.classify_runs import PLAIN, same

CLASSES = ("a", "b")


def trained_state(seed):
    task = make.task(PLAIN, CLASSES)
    torch.manual_seed(seed)
    optim = optimiser(task, PLAIN.optim, 8)
    average = Average(task, 0.9)
    task(torch.randn(2, 3, 32, 32))["logits"].square().sum().backward()
    optim.step()
    average.update(task)
    return task, optim, average


def test_a_checkpoint_fills_another_process(tmp_path):
    one, other = trained_state(0), trained_state(1)
    store = Checkpoints(tmp_path)
    TrainingState(*one, split=False).save(store, {"best": 3.0}, 7, None, Group())
    state, damaged = TrainingState(*other, split=False).load(store, Group())
    assert (state["step"], state["best"], damaged) == (7, 3.0, [])
    for mine, theirs in zip(one, other, strict=True):
        assert same(mine.state_dict(), theirs.state_dict()) is None


def test_a_checkpoint_with_a_right_checksum_and_wrong_sums_is_refused(tmp_path):
    """Its optimiser would read memory that is none of its own."""
    one, other = trained_state(0), trained_state(1)
    store = Checkpoints(tmp_path)
    state = one[1].state_dict()["state"]
    state[next(iter(state))]["exp_avg"] = torch.zeros(1, 1)
    TrainingState(*one, split=False).save(store, {}, 7, None, Group())
    before = [value.clone() for value in other[0].state_dict().values()]
    with pytest.raises(ValueError, match=r"another recipe .*exp_avg' of parameter 0 do not fit"):
        TrainingState(*other, split=False).load(store, Group())
    after = other[0].state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_is_published_is_the_network_with_its_names(tmp_path):
    task, optim, average = trained_state(0)
    run = Run.create(tmp_path, "quick", PLAIN, "data", CLASSES)
    TrainingState(task, optim, average, split=False).publish(
        run, {"top1": 50.0}, {"ids": [7, 9]}, Group()
    )
    net = load(tmp_path / "model.safetensors")
    assert same(net.state_dict(), dict(task.net.state_dict())) is None
    assert net.notes["classes"] == ["a", "b"]
    assert net.notes["figures"] == {"top1": 50.0}
    assert net.notes["test"]["size"] == 32
    assert net.notes["task"]["kind"] == "Classify"
    assert net.notes["data"] == {"ids": [7, 9]}
