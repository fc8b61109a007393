"""Parameter trees that Flax wrote, as one flat dict: "QnAStage_0/QnA_Block_1/..." to array.

`.npz` holds one array a path. Everything else is taken for Flax's own msgpack: nested dicts, whose
arrays are extensions of type 1 (shape, name of the dtype, bytes), the largest cut into chunks.
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOTS = ("optimizer/target/params/", "optimizer/target/", "params/")  # of whole training states
DTYPES = frozenset(
    [
        "bool",
        "float16",
        "float32",
        "float64",
        *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
    ]
)
LARGE, INFLATED = 2**28, 100  # bytes, and how much smaller than that their archive may be
BROKEN = (
    ValueError, TypeError, KeyError, IndexError, OSError, EOFError, MemoryError, RecursionError,
    RuntimeError, OverflowError, AttributeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
CHUNKED = "__msgpack_chunked_array__"


def read(source: str | Path | Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters in a file, or in a tree that is already in memory."""
    if isinstance(source, Mapping):
        return parameters(dict(leaves(source)))
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"from_flax: no file {str(path)!r}")
    try:
        return parameters(_archive(path) if zipfile.is_zipfile(path) else _tree(path))
    except BROKEN as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(
            f"from_flax: {str(path)!r} is neither .npz nor a msgpack file of Flax that is whole "
            f"({why})"
        ) from error


def parameters(flat: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters in a flat tree, without the optimiser's state and without golden outputs.

    Golden files mark weights by "w:"; training states keep them under "params".
    """
    marked = {key[2:]: value for key, value in flat.items() if key.startswith("w:")}
    flat = marked or flat
    for root in ROOTS:
        inside = {k.removeprefix(root): v for k, v in flat.items() if k.startswith(root)}
        if inside:
            return inside
    return dict(flat)


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """A nested tree, flat."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and CHUNKED not in value:
            yield from leaves(value, f"{path}{key}/")
        elif isinstance(value, Mapping):
            yield f"{path}{key}", _joined(value)
        elif value is not None:
            yield f"{path}{key}", np.asarray(value)


def _joined(value: Mapping[str, Any]) -> np.ndarray:
    chunks, shape = value["chunks"], value["shape"]
    flat = np.concatenate([chunks[str(i)] for i in range(len(chunks))])
    return flat.reshape([shape[str(i)] for i in range(len(shape))])


def _archive(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz; of objects there are none, for these would be unpickled."""
    with zipfile.ZipFile(path) as file:
        size = sum(entry.file_size for entry in file.infolist())
    if size > LARGE and size > INFLATED * path.stat().st_size:
        raise ValueError(f"it would be unpacked to {size:,} bytes")
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _tree(path: Path) -> dict[str, np.ndarray]:
    """The arrays of Flax's msgpack."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            "from_flax: reading Flax's own files needs the package msgpack; "
            "try pip install 'saccade[flax]', or save the tree as .npz"
        ) from error

    def array(code: int, data: bytes) -> Any:
        if code not in (1, 3):  # 3 is a scalar, kept in the same way
            raise ValueError(f"an extension of type {code}")
        shape, dtype, buffer = msgpack.unpackb(data)
        if dtype == "bfloat16":  # numpy does not know it
            raw = torch.frombuffer(bytearray(buffer), dtype=torch.bfloat16)
            return raw.float().numpy().reshape(shape)
        if dtype not in DTYPES:
            raise ValueError(f"an array of {dtype!r}")
        return np.frombuffer(buffer, dtype).reshape(shape)

    tree = msgpack.unpackb(path.read_bytes(), ext_hook=array, strict_map_key=False)
    if not isinstance(tree, Mapping):
        raise ValueError("it holds no tree of parameters")
    return dict(leaves(tree))
