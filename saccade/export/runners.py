"""Run an exported file, or a model before it is exported: image to outputs by name.

A torch program is code: to open one is to run whatever it says. `runner` opens those that this
process wrote, and others only where the caller trusts them.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.export.raw import Raw
from saccade.export.writing import WRITTEN, needed, quiet
from saccade.ops import native

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "aot": ".aot.pt2"}
OPENED_BY = {".aot.pt2": "torch._inductor.aoti_load_package", ".pt2": "torch.export.load"}

Run = Callable[[np.ndarray], dict[str, np.ndarray]]  # image to outputs by name


def runner(path: str | Path, threads: int | None = None, trusted: bool = False) -> Run:
    """The file, ready to run: image (B, 3, H, W) to outputs by name.

    Args:
        path: an ONNX file, or a torch program
        threads: that an ONNX file may use; all if None
        trusted: open a torch program that this process did not write; it may run any code
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"export: no file {str(path)!r}")
    if path.name.endswith(ENDINGS["onnx"]):
        return _onnx_runner(path, threads)
    ending = next((e for e in OPENED_BY if path.name.endswith(e)), None)
    if ending is None:
        raise ValueError(
            f"export: {str(path)!r} is no file of ours; give one that ends in "
            f"{', '.join(ENDINGS.values())}"
        )
    content = path.read_bytes()  # once, so that what torch.export.load opens is what was compared
    if not trusted and hashlib.sha256(content).hexdigest() not in WRITTEN:
        raise ValueError(
            f"export: {str(path)!r} is a torch program, which may run any code once it is opened; "
            f"if you trust who made it, open it with {OPENED_BY[ending]}, or give trusted=True"
        )
    try:
        if ending == ENDINGS["aot"]:
            from torch._inductor import aoti_load_package

            with quiet():
                compiled: Any = aoti_load_package(str(path))
            return _by_name(compiled, json.loads(compiled.get_metadata()["saccade"])["outputs"])
        extra = {"saccade.json": ""}
        loaded = torch.export.load(io.BytesIO(content), extra_files=extra).module()
        return _by_name(loaded, json.loads(extra["saccade.json"])["outputs"])
    except Exception as error:  # whatever a damaged archive makes of torch
        raise _unopened(path, error) from error


def _onnx_runner(path: Path, threads: int | None) -> Run:
    ort = needed("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    if native.available():
        options.register_custom_ops_library(native.kernels())
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each way to fail
        raise _unopened(path, error) from error
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {"image": image}), strict=True))


def _unopened(path: Path, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0][:200]
    return ValueError(
        f"export: {str(path)!r} is damaged or was not written by saccade ({why}); export it again"
    )


def runner_of(raw: Raw) -> Run:
    """The model itself, in eager mode."""
    return _by_name(raw, raw.names)


def compiled(raw: Raw, image: np.ndarray) -> Run:
    """By torch.compile, ready for images of this size."""
    run = _by_name(torch.compile(raw), raw.names)
    with quiet():
        run(image)
    return run


def _by_name(call: Callable[[Tensor], Any], names: Sequence[str]) -> Run:
    def run(image: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = call(torch.from_numpy(image))
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    return run
