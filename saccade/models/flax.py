"""Parameter trees that Flax wrote, as one flat dict: "QnAStage_0/QnA_Block_1/..." to array.

`.npz` holds one array a path. Everything else is taken for Flax's own msgpack: nested dicts, whose
arrays are extensions of type 1 (shape, name of the dtype, bytes), the largest cut into chunks.
"""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOTS = ("optimizer/target/params/", "optimizer/target/", "params/")  # of whole training states
CHUNKED = "__msgpack_chunked_array__"


def read(source: str | Path | Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters in a file, or in a tree that is already in memory."""
    if isinstance(source, Mapping):
        return parameters(dict(leaves(source)))
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"from_flax: no file {str(path)!r}")
    if zipfile.is_zipfile(path):
        with np.load(path) as file:
            return parameters({key: file[key] for key in file.files})
    return parameters(dict(leaves(_msgpack(path))))


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


def _msgpack(path: Path) -> Mapping[str, Any]:
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            "from_flax: reading Flax's own files needs the package msgpack; "
            "try pip install 'saccade[flax]', or save the tree as .npz"
        ) from error

    def array(code: int, data: bytes) -> Any:
        if code not in (1, 3):  # 3 is a scalar, kept in the same way
            return msgpack.ExtType(code, data)
        shape, dtype, buffer = msgpack.unpackb(data)
        if dtype == "bfloat16":  # numpy does not know it
            raw = torch.frombuffer(bytearray(buffer), dtype=torch.bfloat16)
            return raw.float().numpy().reshape(shape)
        return np.frombuffer(buffer, dtype).reshape(shape)

    try:
        tree = msgpack.unpackb(path.read_bytes(), ext_hook=array, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(
            f"from_flax: {str(path)!r} is neither .npz nor a msgpack file of Flax ({error})"
        ) from error
    if not isinstance(tree, Mapping):
        raise ValueError(f"from_flax: {str(path)!r} holds no tree of parameters")
    return tree
