"""A tree comes back bit for bit, or its file is refused."""

import json
import math
import random

import pytest
import torch

from saccade.engine import archive
from saccade.engine.archive import DamagedFileError
from tests.attack import damage, evil_contents
from tests.engine.classify_runs import same

TREE = {
    "a": [1, -2.5, None, True, "é\udc80", (), (1, (2,)), {}, {3: "x", 4: torch.ones(2)}],
    "big": 2**70,
    "kinds": {str(d): torch.ones(3, 2, dtype=d) for d in archive.DTYPES},
    "last": torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "column": torch.arange(6.0).reshape(2, 3)[:, 1],
    "zero": torch.tensor(7),
    "empty": torch.empty(0, 4),
}


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "x.safetensors"
    digest = archive.write(path, TREE, {"step": 3, "score": math.inf})
    assert archive.digest(path) == digest
    assert archive.about(path) == {"step": 3, "score": math.inf}
    read = archive.read(path)
    assert same(TREE, read) is None
    assert read["last"].stride() == TREE["last"].stride()
    assert archive.write(tmp_path / "y", TREE, {"step": 3, "score": math.inf}) == digest


def test_safetensors_reads_it_too(tmp_path):
    from safetensors.torch import load_file

    archive.write(tmp_path / "x", TREE, {})
    assert torch.equal(load_file(tmp_path / "x")["/last"], TREE["last"])


def test_any_damage_is_seen(tmp_path):
    chance, path = random.Random(0), tmp_path / "x.safetensors"
    archive.write(path, {"w": torch.arange(50.0), "n": (1, "a")}, {"step": 1})
    whole = path.read_bytes()
    for _ in range(200):
        path.write_bytes(whole)
        damage(tmp_path, chance)
        if not path.exists() or path.read_bytes() != whole:
            with pytest.raises(DamagedFileError):
                archive.digest(path)


def forged(path, state, **tensors):
    """A file whose checksum fits, but whose tree nobody would write."""
    import hashlib

    metadata = {"sha256": "0" * 64, "about": "{}", "state": state}
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    digest = hashlib.sha256(content).hexdigest().encode()
    at = 8 + len(archive.HEAD)
    path.write_bytes(content[:at] + digest + content[at + 64 :])
    assert archive.digest(path)
    return path


TENSOR = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
TREES = [
    "", "{", '{"tensor": "gone"}', '{"tensor": 3}', '{"pickle": "x"}', '{"a": 1, "b": 2}',
    '{"pairs": [[[1], 2]]}', '{"pairs": 3}', '{"tuple": 3}', '{"dict": 3}', "[" * 1000,
    "[" * 100_000, '{"tensor": "w", "stride": [1000000000]}', '{"tensor": "w", "stride": [0]}',
    '{"tensor": "w", "stride": [-1]}', '{"tensor": "w", "stride": 1}',
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_a_forged_tree_is_refused(tree, tmp_path):
    with pytest.raises(DamagedFileError):
        archive.read(forged(tmp_path / "x", tree, **TENSOR))


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**40]}},
        {"w": {"dtype": "X", "shape": [2], "data_offsets": [0, 8]}},
    ],
    ids=["shape", "end", "kind"],
)
def test_forged_tensors_are_refused(tensors, tmp_path):
    with pytest.raises(DamagedFileError):
        archive.read(forged(tmp_path / "x", '{"tensor": "w"}', **tensors))


def test_pickles_are_none(tmp_path):
    for content in evil_contents(tmp_path / "marker").values():
        (tmp_path / "x").write_bytes(content)
        for act in (archive.digest, archive.about, archive.read):
            with pytest.raises(DamagedFileError):
                act(tmp_path / "x")
    assert not (tmp_path / "marker").exists()
