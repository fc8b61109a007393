"""Read split checkpoints of earlier versions: folders of torch.distributed.checkpoint.

    .metadata       a pickle that says which tensor lies where; read as data (`models.pickled`)
    __0_0.distcp    parts of tensors and plain values, each a small file of torch.save
    rest.pt         the rest of the state

They are read and never written.
"""

import re
from collections.abc import Callable
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


def check(folder: Path, whole: bool) -> None:
    """Refuse a folder that is not as it was written.

    Args:
        folder: the checkpoint
        whole: read everything once, for every part has a checksum of its own
    """
    rest(folder)
    for value in leaves(folder).values():
        for piece in value if isinstance(value, list) and value else ():
            if isinstance(piece, Piece) and whole:
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
    shapes, rows = {}, {}
    for name, entry in _pairs(fields["state_dict_metadata"]):
        if isinstance(entry, Call) and entry.function == CHECKPOINT + "BytesStorageMetadata":
            continue
        tensor = _fields(entry, "TensorStorageMetadata")
        shapes[name] = meaning.of(tensor["size"])
        for chunk in tensor["chunks"]:
            part = _fields(chunk, "ChunkStorageMetadata")
            rows[name, meaning.of(part["offsets"])] = (meaning.of(part["sizes"]) or (1,))[0]
    result: Leaves = {}
    for index, info in _pairs(fields["storage_data"]):
        where, part = _fields(index, "MetadataIndex"), _fields(info, INFO)
        name, path = where["fqn"], paths[where["fqn"]]
        read = partial(_stored, folder, part["relative_path"], part["offset"], part["length"])
        if name not in shapes:
            result[path] = read()
            continue
        offset = meaning.of(where["offset"])
        start, *others = offset or (0,)
        if any(others):
            raise RefusedPickleError("'.metadata' splits a tensor in another way than saccade did")
        pieces = result.setdefault(path, [])
        own = rows[name, offset]
        pieces.append(Piece(start, own, shapes[name], _rows_of(read, own, shapes[name])))
    return result


def _rows_of(
    read: Callable[[], Any], rows: int, shape: tuple[int, ...]
) -> Callable[[int, int], Tensor]:
    """Reads some rows of a part of a tensor of that shape."""

    def some(first: int, end: int) -> Tensor:
        part = read()
        shape_out = (rows, *shape[1:]) if shape else ()
        if not isinstance(part, Tensor) or tuple(part.shape) != shape_out:
            raise RefusedPickleError("'.metadata' and the files beside it do not fit")
        return part[first:end] if shape else part

    return some


def _stored(folder: Path, name: Any, offset: Any, length: Any) -> Any:
    """The value that a part of a file holds, from `offset` on."""
    if not isinstance(name, str) or not FILE.fullmatch(name):
        raise RefusedPickleError(f"'.metadata' names the file {str(name)[:80]!r}")
    if type(offset) is not int or type(length) is not int or min(offset, length) < 0:
        raise RefusedPickleError("'.metadata' names impossible bytes")
    with open(folder / name, "rb") as file:
        file.seek(offset)
        return pickled.load(file.read(length))


def _fields(value: Any, kind: str) -> dict[str, Any]:
    """The attributes that a pickle sets on an object of that class."""
    type_name = kind if " " in kind else CHECKPOINT + kind
    if not isinstance(value, Call) or value.function != type_name:
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
