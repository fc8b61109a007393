import pytest
import torch

from saccade.bench.operators import OPERATORS, peers
from saccade.bench.peer import Shape
from saccade.bench.run import compare
from saccade.models import zoo

SMALL = Shape(1, 9, 10, 8, 2)


def test_every_paper_has_one():
    assert set(OPERATORS) == set(zoo.FAMILIES)


@pytest.mark.parametrize("word", OPERATORS)
@pytest.mark.parametrize("layer", [False, True], ids=["operator", "layer"])
@pytest.mark.parametrize("train", [False, True], ids=["forward", "train"])
def test_all_that_can_run_does(word, layer, train):
    cases = peers(word, (), SMALL, layer=layer, train=train)
    assert next(iter(cases)) == word
    for name, peer in cases.items():
        if name != "flex":
            assert not peer.absent
            assert min(peer.work_of(train)) > 0
            result = peer.call(train)()
            assert all(g is not None for g in result) if train else result.isfinite().all()


def test_an_operator_is_measured_beside_its_peers():
    run = compare(peers("linglo", ["tokenwise", "global"], SMALL), rounds=1)
    assert run.against == "linglo"
    assert [row.name for row in run.rows] == ["linglo", "tokenwise", "global"]
    assert all(0 < row.of_limit[0] < 1.5 for row in run.rows)


def test_peers_are_chosen_by_name():
    assert [*peers("sasa", ["unfold", "conv"], SMALL)] == ["sasa", "unfold", "conv"]
    with pytest.raises(ValueError, match="sasa has no peer named 'unfld'; did you mean 'unfold'"):
        peers("sasa", ["unfld"], SMALL)


def test_options_belong_to_their_operator():
    with pytest.raises(ValueError, match="linglo has no window; leave --window out"):
        peers("linglo", (), SMALL, window=3)
    assert peers("linglo", (), SMALL, window=None)
    with pytest.raises(ValueError, match="window must be odd"):
        peers("sasa", (), SMALL, window=4)


@pytest.mark.parametrize("word", OPERATORS)
def test_half_precision(word):
    call = peers(word, [word], SMALL, dtype=torch.bfloat16)[word].call()
    assert call().dtype == torch.bfloat16
