"""Split checkpoints of earlier versions still load, and their pickle runs nothing."""

import pickle
import shutil

import pytest
import torch

from saccade.engine import former
from saccade.engine.checkpoint import Checkpoints
from saccade.models.pickled import RefusedPickleError
from tests.attack import Evil, evil_contents
from tests.engine.old_checkpoints import whole, write_split

TENSORS = {
    "model": {"a.weight": torch.arange(12.0).reshape(4, 3), "a.count": torch.tensor(5)},
    "optim": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["a.weight"]}]},
}


@pytest.fixture
def old(tmp_path):
    return write_split(tmp_path, TENSORS, {"best": 1.5}, 7)


@pytest.mark.parametrize("indexed", [True, False])
def test_it_is_read_without_unpickling(old, tmp_path, indexed, monkeypatch):
    if not indexed:
        (tmp_path / "checkpoints/index.json").unlink()

    def refuse(*_, **__):
        raise AssertionError("something is unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    path, damaged = Checkpoints(tmp_path).load()
    assert (path, damaged) == (old, [])
    leaves = former.leaves(path)
    assert torch.equal(whole(leaves["model", "a.weight"]), TENSORS["model"]["a.weight"])
    assert whole(leaves["model", "a.count"]) == 5
    groups = {k[3]: v for k, v in leaves.items() if k[:2] == ("optim", "param_groups")}
    assert groups["lr"] == 0.1
    assert groups["betas"] == (0.9, 0.99)
    assert former.rest(path) == {"step": 7, "best": 1.5}


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("name", [".metadata", "rest.pt", "__0_0.distcp"])
def test_no_file_of_it_runs_code(old, tmp_path, name, indexed):
    marker = tmp_path / "marker"
    for content in evil_contents(marker).values():
        (old / name).write_bytes(content)
        index = tmp_path / "checkpoints/index.json"
        if indexed:
            shutil.rmtree(old)
            write_split(tmp_path, TENSORS, {}, 7)
            (old / name).write_bytes(content)
        else:
            index.unlink(missing_ok=True)
        with pytest.raises((ValueError, FileNotFoundError), match="no whole checkpoint"):
            Checkpoints(tmp_path).load()
    assert not marker.exists()


def test_a_metadata_that_hides_a_call_is_refused(old, tmp_path):
    """Inside torch's own classes, where a list of allowed classes alone would let it pass."""
    marker = tmp_path / "marker"
    metadata = pickle.loads((old / ".metadata").read_bytes())
    for field in ("planner_data", "storage_meta", "state_dict_metadata", "storage_data"):
        value = getattr(metadata, field)
        setattr(metadata, field, {"x": Evil(marker)})
        (old / ".metadata").write_bytes(pickle.dumps(metadata))
        setattr(metadata, field, value)
        with pytest.raises(RefusedPickleError, match="names 'io open'"):
            former.leaves(old)
    assert not marker.exists()


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "__0_0.distcp/../x", ".metadata"])
def test_it_names_no_other_files(old, path):
    metadata = pickle.loads((old / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = path
    (old / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(RefusedPickleError, match="names the file"):
        former.leaves(old)
