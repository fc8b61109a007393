"""Checkpoints of earlier versions: pickles, which must still load."""

import json
import shutil

import torch
from torch.distributed import checkpoint as dcp

from saccade.engine import shards
from saccade.engine.checkpoint import Checkpoints, sha256


def write_whole(run, state, step):
    """One file of torch.save, and an index."""
    place = Checkpoints(run).folder
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"step-{step:09d}.pt"
    torch.save({"format": 1, "step": step, **state}, path)
    return indexed_as(path, step)


def write_split(run, tensors, rest, step):
    """A folder of torch.distributed.checkpoint, and an index."""
    path = Checkpoints(run).folder / f"step-{step:09d}"
    path.mkdir(parents=True, exist_ok=True)
    dcp.save(tensors, checkpoint_id=path)
    torch.save({"step": step, **rest}, path / "rest.pt")
    return indexed_as(path, step)


def indexed_as(path, step):
    """Write an index that names this checkpoint alone."""
    entry = {"step": step, "file": path.name, "sha256": sha256(path), "score": None}
    index = {"entries": [entry], "best": None}
    (path.parent / "index.json").write_text(json.dumps(index))
    return path


def made_old(run):
    """The last checkpoint of a run as an earlier saccade would have written it."""
    store = Checkpoints(run)
    step = store.entry()["step"]
    state, _ = store.load()
    if isinstance(state, dict):
        shutil.rmtree(store.folder)
        return write_whole(run, {k: v for k, v in state.items() if k != "format"}, step)
    leaves, rest = shards.leaves(state), shards.rest(state)
    tensors = {}
    for path, value in leaves.items():
        owner = tensors
        for key in path[:-1]:
            owner = owner.setdefault(key, {})
        owner[path[-1]] = whole(value)
    tensors["optim"]["param_groups"] = list(tensors["optim"]["param_groups"].values())
    shutil.rmtree(store.folder)
    return write_split(run, tensors, rest, step)


def whole(value):
    """A tensor of all its pieces; any other value as it is."""
    if not (isinstance(value, list) and value and isinstance(value[0], shards.Piece)):
        return value
    pieces = sorted(value, key=lambda piece: piece.start)
    parts = [piece.read(0, piece.rows) for piece in pieces]
    return parts[0] if not pieces[0].shape else torch.cat(parts)
