import pytest
import torch
from torch import nn

from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.models.backbone import Stage
from saccade.paper.recipes import Blank
from saccade.recipes.recipe import Data, change
from tests.engine.classify_runs import PLAIN


def test_the_same_seed_makes_the_same_network():
    one, two, other = (
        make.task(change(PLAIN, loop__seed=seed), ("a", "b")).net.state_dict() for seed in (3, 3, 4)
    )
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)


def test_statistics_and_recomputing_as_asked():
    net = make.model(
        change(PLAIN, model__name="sasa_nano", loop__bn_decay=0.99, loop__checkpointing=True), 2
    )
    (momentum,) = {m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm2d)}
    assert momentum == pytest.approx(0.01)
    assert all(m.checkpointing for m in net.modules() if isinstance(m, Stage))


def test_options_reach_the_model():
    net = make.model(change(PLAIN, model__name="resnet10t", model__options={"in_chans": 1}), 2)
    assert net.eval()(torch.zeros(1, 1, 32, 32)).shape == (1, 2)


def test_workers(monkeypatch):
    assert make.workers(Data(workers=5), Group()) == 5
    assert make.workers(Data(), Group()) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    assert make.workers(Data(), Group(device=torch.device("cuda"))) == 8


def test_a_batch_must_divide_over_the_processes():
    net = make.model(PLAIN, 2)
    with pytest.raises(ValueError, match=r"set loop\.batch=6"):
        make.training(change(PLAIN, loop__batch=8), Blank(30, 2), net, Group(rank=0, world=3))


def test_a_model_that_drops_no_paths_need_not_know_of_it():
    with torch.device("meta"):
        net = make.model(change(PLAIN, model__name="vgg11", model__drop_path=0.0), 2)
    assert net.num_classes == 2
