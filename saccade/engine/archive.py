"""A tree of plain values and tensors as one safetensors file that knows its own checksum.

    {"__metadata__": {"sha256": 64 digits, "about": JSON, "state": JSON}, name: tensor, ...}, data

`state` is the tree: what JSON holds is itself, a tensor is {"tensor": name}, a tuple {"tuple":
[...]}, a dict {"dict": {...}} or, where keys are no text, {"pairs": [[key, value], ...]}. The
checksum is that of the whole file with zeros in its place, so any change of the file is noticed and
refused. Reading one runs only a JSON parser and safetensors' own reader.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saccade import files

SUFFIX = ".safetensors"
HEAD = b'{"__metadata__":{"sha256":"'
ZEROS = b"0" * 64
LONGEST = 100_000_000  # bytes of a header; safetensors takes no more
DEEPEST = 100  # levels of nested dicts and lists
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class DamagedFileError(ValueError):
    """A file is not as saccade wrote it: cut short, changed, or of another program."""


# -- writing --------------------------------------------------------------------------------


def write(path: Path, state: Any, about: dict[str, Any], cure: str = files.MAKE_ROOM) -> str:
    """Write a tree; gives the checksum that the file now holds.

    Args:
        path: the file
        state: dicts, lists and tuples of plain values and tensors
        about: plain values that can be read without the tensors
        cure: what to do if the disk is full
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_packed(state, tensors, ""), separators=(",", ":"))
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())  # keeps all aligned
    metadata = {"sha256": ZEROS.decode(), "about": json.dumps(about), "state": tree}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        one, begin = tensors[name], end
        end += one.numel() * one.element_size()
        header[name] = {
            "dtype": DTYPES[one.dtype], "shape": list(one.shape), "data_offsets": [begin, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise ValueError(f"{str(path)!r}: the plain values of a state take too much room")
    digest = hashlib.sha256()
    with files.replacing(path, cure) as file:
        for chunk in (len(text).to_bytes(8, "little"), text):
            digest.update(chunk)
            file.write(chunk)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            data = memoryview(flat.view(torch.uint8).numpy())
            digest.update(data)
            file.write(data)
        file.seek(8 + len(HEAD))
        file.write(digest.hexdigest().encode())
    return digest.hexdigest()


def _packed(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """The tree as JSON holds it; its tensors are collected by their paths."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        if value.dtype not in DTYPES:
            raise TypeError(f"a state cannot hold {value.dtype} ({path})")
        tensors[path] = value
        usual = torch.empty(value.shape, device="meta").stride()
        if value.stride() == usual or not _dense(value.shape, value.stride()):
            return {"tensor": path}
        return {"tensor": path, "stride": value.stride()}
    if isinstance(value, dict):
        inner = {key: _packed(v, tensors, f"{path}/{key}") for key, v in value.items()}
        if all(type(key) is str for key in inner):
            return {"dict": inner}
        if all(type(key) is int for key in inner):
            return {"pairs": [[key, v] for key, v in inner.items()]}
    if isinstance(value, list | tuple):
        parts = [_packed(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    raise TypeError(f"a state holds plain values and tensors, got {type(value).__name__} ({path})")


# -- reading --------------------------------------------------------------------------------


def digest(path: Path) -> str:
    """The checksum of a whole file; a file that differs from it raises `DamagedFileError`."""
    with _open_file(path) as file:
        head = file.read(8 + len(HEAD))
        recorded = file.read(64)
        if head[8:] != HEAD or len(recorded) != 64:
            raise DamagedFileError("is damaged (its beginning is not what saccade writes)")
        actual = hashlib.sha256(head + ZEROS)
        while chunk := file.read(1 << 20):
            actual.update(chunk)
    if actual.hexdigest().encode() != recorded:
        raise DamagedFileError("is damaged (its checksum differs)")
    return actual.hexdigest()


def about(path: Path) -> dict[str, Any]:
    """The plain values beside a tree; read alone, they are not yet known to be whole."""
    with _open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= LONGEST:
            raise DamagedFileError("is damaged (its header has no length)")
        text = file.read(length)
    content = parsed(text)
    metadata = content.get("__metadata__") if isinstance(content, dict) else None
    note = parsed(metadata.get("about", "")) if isinstance(metadata, dict) else None
    if not isinstance(note, dict):
        raise DamagedFileError("is damaged (its header is not what saccade writes)")
    return note


def read(path: Path, tensor: Callable[[Any, str], Any] | None = None) -> Any:
    """The tree of a file whose `digest` was taken before.

    Args:
        path: the file
        tensor: a function of (file, name) that gives the tensor; copies it into memory if None
    """
    _regular(path)
    try:
        with safe_open(path, "pt") as file:
            tree = parsed((file.metadata() or {}).get("state", ""))
            return _unpacked(tree, file, tensor or _copied, 0)
    except DamagedFileError:
        raise
    except (
        SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError,
    ) as error:  # fmt: skip
        raise DamagedFileError(f"is damaged ({error})") from error


def _copied(file: Any, name: str) -> Tensor:
    return file.get_tensor(name).clone()


def _unpacked(value: Any, file: Any, tensor: Callable[[Any, str], Any], depth: int) -> Any:
    if depth > DEEPEST:
        raise DamagedFileError("is damaged (its values are nested too deeply)")

    def inner(part: Any) -> Any:
        return _unpacked(part, file, tensor, depth + 1)

    if isinstance(value, list):
        return [inner(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        one = tensor(file, value["tensor"])
        return one if "stride" not in value else laid_out(one, value["stride"])
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(inner(part) for part in content)
    if kind == "dict":
        return {key: inner(part) for key, part in content.items()}
    if kind == "pairs" and all(type(key) is int for key, _ in content):
        return {key: inner(part) for key, part in content}
    raise DamagedFileError(f"is damaged (it has a value of kind {kind!r})")


def laid_out(values: Any, stride: Any) -> Any:
    """The tensor with its values in another order in memory, such as channels last."""
    if not isinstance(values, Tensor):
        return values
    if not (isinstance(stride, list) and _dense(values.shape, stride)):
        raise DamagedFileError("is damaged (a tensor's strides do not fit)")
    return torch.empty_strided(values.shape, stride, dtype=values.dtype).copy_(values)


def _dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether these strides put the values of that shape side by side, in some order."""
    room = 1
    if len(shape) != len(stride) or any(type(step) is not int or step < 0 for step in stride):
        return False
    for step, side in sorted(zip(stride, shape, strict=True)):
        if side > 1 and step != room:
            return False
        room *= side
    return True


def parsed(text: str | bytes) -> Any:
    """JSON; anything else raises `DamagedFileError`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError("is damaged (its header cannot be read)") from error


def _open_file(path: Path) -> Any:
    _regular(path)
    return open(path, "rb")


def _regular(path: Path) -> None:
    if not path.is_file():
        raise DamagedFileError("is no plain file" if path.exists() else "is missing")
