"""Rows that processes wrote apart come together for any number of them."""

import random
import shutil

import pytest
import torch

from saccade.engine import archive, shards
from saccade.engine.archive import DamagedFileError
from saccade.engine.checkpoint import Checkpoints
from tests.attack import damage
from tests.engine.old_checkpoints import whole

W = torch.arange(15.0).reshape(5, 3)


def save(run, step, value=1.0):
    """What two processes would write of a tensor of five rows, and the rest."""
    store = Checkpoints(run)
    part = store.begin_folder(step)
    digests = {}
    for rank, (start, end) in enumerate([(0, 3), (3, 5)]):
        rows = {"path": ["w"], "start": start, "shape": [5, 3], "value": value * W[start:end]}
        plain = [
            {"path": ["groups", 0, "lr"], "value": 0.5},
            {"path": ["n"], "value": torch.ones(())},
        ]
        name = shards.rank_file(rank)
        about = {"step": step, "rank": rank, "processes": 2}
        digests[name] = archive.write(part / name, [rows, *(plain if rank == 0 else [])], about)
    return store.adopt(part, {"best": value}, step, value, {}, digests)


def test_rows_come_together(tmp_path):
    path = save(tmp_path, 1)
    leaves = shards.leaves(path)
    assert torch.equal(whole(leaves["w",]), W)
    tree = {"w": torch.zeros(5, 3), "groups": [{"lr": 0.0}], "n": torch.zeros(())}
    filled = shards.fill(tree, leaves)
    assert torch.equal(filled["w"], W)
    assert filled["groups"] == [{"lr": 0.5}]
    assert filled["n"] == 1
    for tree in (
        {"w": torch.zeros(4, 3)},
        {"v": torch.zeros(1)},
        {"v": 3},
        {"w": torch.zeros(6, 3)},
    ):
        with pytest.raises(ValueError, match="of another model"):
            shards.fill(tree, leaves)


@pytest.mark.parametrize("indexed", [True, False])
def test_no_damage_is_loaded(tmp_path, indexed):
    """The one before is taken, or a sentence says that none is whole."""
    chance = random.Random(1)
    whole_run = tmp_path / "whole"
    for step in (1, 2):
        save(whole_run, step, step)
    taken = []
    for i in range(40):
        run = tmp_path / str(i)
        shutil.copytree(whole_run, run)
        if not indexed:
            (run / "checkpoints/index.json").unlink()
        what = damage(run / "checkpoints", chance)
        try:
            path, _ = Checkpoints(run).load()
        except (ValueError, FileNotFoundError):
            taken.append(0)
            continue
        step = shards.rest(path)["step"]
        assert torch.equal(whole(shards.leaves(path)["w",]), step * W), what
        assert shards.rest(path)["best"] == step, what
        taken.append(step)
        shutil.rmtree(run)
    assert {1, 2} <= set(taken)


def test_a_file_of_another_checkpoint_is_seen(tmp_path):
    one, two = save(tmp_path, 1), save(tmp_path, 2, 2.0)
    shutil.copy(one / shards.rank_file(1), two / shards.rank_file(1))
    with pytest.raises(DamagedFileError, match=r"'rank-00001.safetensors' that is of another"):
        shards.check(two)
    assert Checkpoints(tmp_path).load()[0] == one
