"""Split checkpoints as saccade wrote them up to 0.1: folders of torch.distributed.checkpoint.

    .metadata       a pickle that says which tensor lies where; read as data (`models.pickled`)
    __0_0.distcp    parts of tensors and plain values, each a small file of torch.save
    rest.pt         the rest of the state

They are read and never written.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.engine.shards import Leaves, Piece
from saccade.models import pickled
from saccade.models.pickled import Call, Meaning, Pairs, RefusedPickleError

CHECKPOINT = "torch.distributed.checkpoint.metadata "
INFO = "torch.distributed.checkpoint.filesystem _StorageInfo"
NAMES = frozenset(
    {
        *(CHECKPOINT + name for name in (
            "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata",
            "TensorProperties", "ChunkStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )),
        *(f"torch {kind}" for kind in (
            "Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
            "uint8", "bool", "device",
        )),
        INFO, "torch.serialization _get_layout", "pathlib PosixPath", "pathlib WindowsPath",
        "pathlib._local PosixPath", "collections OrderedDict",
    }
)  # fmt: skip
FILE = re.compile(r"__\d+_\d+\.distcp")


def is_former(folder: Path) -> bool:
    """Whether a split checkpoint is of this kind."""
    return (folder / ".metadata").is_file()


def rest(folder: Path) -> dict[str, Any]:
    """The state beside the tensors that were split."""
    return pickled.load(folder / "rest.pt")


def check(folder: Path) -> None:
    """Read everything once: every part has a checksum of its own."""
    rest(folder)
    for value in leaves(folder).values():
        for piece in value if isinstance(value, list) and value else ():
            if isinstance(piece, Piece):
                piece.read(0, piece.rows)


def leaves(folder: Path) -> Leaves:
    """All values by their paths; tensors as pieces that are read when they are needed."""
    data = (folder / ".metadata").read_bytes()
    metadata = pickled.instructions(data, NAMES)
    try:
        return _leaves(folder, metadata, 4 * len(data) + 1000)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, RefusedPickleError):
            raise
        raise RefusedPickleError(f"'.metadata' is not what torch writes ({error})") from error


def _leaves(folder: Path, metadata: Any, budget: int) -> Leaves:
    meaning = Meaning({"torch Size": _size}, budget)
    fields = _fields(metadata, "Metadata")
    paths = {name: meaning.of(path) for name, path in _pairs(fields["planner_data"])}
    shapes = {
        name: meaning.of(_fields(entry, "TensorStorageMetadata")["size"])
        for name, entry in _pairs(fields["state_dict_metadata"])
        if entry.function == CHECKPOINT + "TensorStorageMetadata"
    }
    result: Leaves = {}
    for index, info in _pairs(fields["storage_data"]):
        where, part = _fields(index, "MetadataIndex"), _fields(info, INFO)
        name, path = where["fqn"], paths[where["fqn"]]
        read = partial(_stored, folder, part["relative_path"], part["offset"], part["length"])
        if name not in shapes:
            result[path] = read()
            continue
        start, *others = meaning.of(where["offset"]) or (0,)
        if any(others):
            raise RefusedPickleError("'.metadata' splits a tensor in another way than saccade did")
        pieces = result.setdefault(path, [])
        pieces.append(_piece(start, shapes[name], read))
    return result


def _piece(start: int, shape: tuple[int, ...], read: partial[Any]) -> Piece:
    """A part of a tensor; how many rows it has is known once it was read."""
    tensor: Tensor = read()

    def rows(first: int, end: int) -> Tensor:
        return read()[first:end] if shape else read()

    return Piece(start, len(tensor) if shape else 1, shape, rows)


def _stored(folder: Path, name: Any, offset: Any, length: Any) -> Any:
    """What lies in a file from one byte to another."""
    if not isinstance(name, str) or not FILE.fullmatch(name):
        raise RefusedPickleError(f"'.metadata' names the file {str(name)[:80]!r}")
    if type(offset) is not int or type(length) is not int or min(offset, length) < 0:
        raise RefusedPickleError("'.metadata' names impossible bytes")
    with open(folder / name, "rb") as file:
        file.seek(offset)
        return pickled.load(file.read(length))


def _fields(value: Any, kind: str) -> dict[str, Any]:
    """What a call sets on an object of that class."""
    wanted = kind if " " in kind else CHECKPOINT + kind
    if not isinstance(value, Call) or value.function != wanted:
        raise RefusedPickleError(f"'.metadata' lacks a {kind.rpartition(' ')[2]}")
    return dict(_pairs(value.state))


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, Pairs):
        raise RefusedPickleError("'.metadata' lacks a dict")
    return value.pairs


def _size(meaning: Meaning, call: Call) -> tuple[int, ...]:
    (sides,) = meaning.of(call.arguments)
    if not all(type(side) is int and side >= 0 for side in sides):
        raise RefusedPickleError("'.metadata' holds an impossible shape")
    return tuple(sides)
