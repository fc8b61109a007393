"""Checkpoints of parameters that are split over processes: a folder of files, one a process.

    step-000001200/rank-00000.safetensors    the rows that each process holds, and where they belong
    step-000001200/rest.safetensors          the rest of the state, and the checksums of the others

Each is an `archive`. A run goes on with any number of processes: each reads the rows it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.engine import archive
from saccade.engine.archive import DamagedFileError
from saccade.engine.distributed import Group

REST = "rest" + archive.SUFFIX


@dataclass(frozen=True)
class Piece:
    """Some rows of a tensor."""

    start: int
    rows: int
    shape: tuple[int, ...]
    """Of the whole tensor."""
    read: Callable[[int, int], Tensor]
    """(first, end): some of its rows, counted within the piece."""


Leaves = dict[tuple[str | int, ...], Any]
"""Plain values, or lists of `Piece`, by their paths inside nested dicts and lists."""


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}{archive.SUFFIX}"


# -- writing --------------------------------------------------------------------------------


def write(folder: Path, tree: Any, step: int, group: Group, cure: str) -> tuple[str, str]:
    """Write what this process holds of a tree; gives the name of its file and the checksum."""
    leaves = []
    for path, value in flat(tree).items():
        rows = local_rows(value)
        if rows is not None:
            start, own = rows
            shape = list(value.shape)
            leaves.append({"path": list(path), "start": start, "shape": shape, "value": own})
        elif group.first:
            leaves.append({"path": list(path), "value": value})
    name = rank_file(group.rank)
    about = {"step": step, "rank": group.rank, "processes": group.world}
    return name, archive.write(folder / name, leaves, about, cure)


def flat(tree: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    """The values of nested dicts and lists by their paths."""
    if not isinstance(tree, dict | list):
        return {path: tree}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {p: v for key, inner in pairs for p, v in flat(inner, (*path, key)).items()}


def local_rows(value: Any) -> tuple[int, Tensor] | None:
    """The first row and all rows that this process holds of a split tensor; None if it is whole."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(value, DTensor):
        return None
    if tuple(value.placements) != (Shard(0),):
        raise ValueError(f"a checkpoint is split by rows, got {value.placements}")
    own = value.to_local()
    size = -(-value.shape[0] // value.device_mesh.size())  # as torch.chunk has it
    start = min(value.device_mesh.get_local_rank() * size, value.shape[0])
    if len(own) != min(size, value.shape[0] - start):
        raise ValueError("a checkpoint is split by even rows; this torch splits in another way")
    return start, own


# -- reading --------------------------------------------------------------------------------


def check(folder: Path) -> str:
    """The checksum of a folder; `DamagedFileError` if any of its files is damaged or missing."""
    digest = archive.digest(folder / REST)
    file_list = archive.about(folder / REST).get("files")
    if not isinstance(file_list, dict) or not file_list:
        raise DamagedFileError("is damaged (it does not say which files it has)")
    for rank in range(len(file_list)):
        name = rank_file(rank)
        try:
            if archive.digest(folder / name) != file_list.get(name):
                raise DamagedFileError("is of another checkpoint")
        except DamagedFileError as error:
            raise DamagedFileError(f"has a file {name!r} that {error}") from error
    return digest


def rest(folder: Path) -> dict[str, Any]:
    """The state beside the tensors that are split."""
    return archive.read(folder / REST)


def leaves(folder: Path) -> Leaves:
    """All values by their paths; tensors as pieces that are read when they are needed."""
    result: Leaves = {}
    for rank in range(len(archive.about(folder / REST)["files"])):
        file = folder / rank_file(rank)
        for leaf in archive.read(file, tensor=lambda _, name: _Stored(name)):
            _enter(result, leaf, file)
    return result


@dataclass(frozen=True)
class _Stored:
    """A tensor that stays in its file."""

    name: str


def _enter(result: Leaves, leaf: dict[str, Any], file: Path) -> None:
    value, path = leaf["value"], tuple(leaf["path"])
    if not isinstance(value, _Stored):
        result[path] = value
        return
    name = value.name

    def read(first: int, end: int) -> Tensor:
        with archive.safe_open(file, "pt") as stored:
            return stored.get_slice(name)[first:end].clone()

    with archive.safe_open(file, "pt") as stored:
        shape = tuple(stored.get_slice(name).get_shape())
        if "start" in leaf:
            pieces = result.setdefault(path, [])
            pieces.append(Piece(leaf["start"], shape[0], tuple(leaf["shape"]), read))
        else:
            whole = stored.get_tensor(name).clone()
            result[path] = [Piece(0, len(whole) if shape else 1, shape, _rows_of(whole))]


def _rows_of(whole: Tensor) -> Callable[[int, int], Tensor]:
    return lambda first, end: whole[first:end] if whole.ndim else whole


def fill(tree: Any, leaves: Leaves, path: tuple[str | int, ...] = ()) -> Any:
    """The tree with its plain values replaced by those of a checkpoint, its tensors filled in."""
    if isinstance(tree, Tensor):
        _fill_tensor(tree, leaves.get(path), path)
        return tree
    if path in leaves:
        return leaves[path]
    if isinstance(tree, dict):
        return {key: fill(value, leaves, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [fill(value, leaves, (*path, i)) for i, value in enumerate(tree)]
    raise _misfit(path)


@torch.no_grad()
def _fill_tensor(tensor: Tensor, pieces: Any, path: tuple[str | int, ...]) -> None:
    """Copy the rows that this process holds from the pieces that have them."""
    if not isinstance(pieces, list) or not all(isinstance(piece, Piece) for piece in pieces):
        raise _misfit(path)
    if not pieces or any(piece.shape != tuple(tensor.shape) for piece in pieces):
        raise _misfit(path)
    start, own = local_rows(tensor) or (0, tensor)
    if not own.ndim:
        own.copy_(pieces[0].read(0, 1))
        return
    count = 0
    for piece in pieces:
        first, end = max(start, piece.start), min(start + len(own), piece.start + piece.rows)
        if first < end:
            own[first - start : end - start] = piece.read(first - piece.start, end - piece.start)
            count += end - first
    if count != len(own):
        raise _misfit(path)


def _misfit(path: tuple[str | int, ...]) -> ValueError:
    name = ".".join(map(str, path))
    return ValueError(
        f"the checkpoint is of another model ({name!r} does not fit); "
        f"resume with the recipe it was made with"
    )
