"""Write a prepared model as ONNX, as torch.export's program, or compiled by AOTInductor.

`about` (names, classes, normalisation) travels inside the file. Batch, height and width stay free.
"""

import io
import json
from pathlib import Path
from typing import Any

import torch

from saccade.export.raw import Raw
from saccade.export.writing import WRITTEN, needed, partial, quiet, sha256
from saccade.ops.operator import use_backend
from saccade.version import FORMATS

AXES = ("batch", "height", "width")


def program(raw: Raw, kernels: bool = False) -> torch.export.ExportedProgram:
    """torch.export's graph, for any batch, height and width, in operators that torch itself has.

    With `kernels` it calls the operators of saccade, which then must be there where it runs.
    """
    free = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    with quiet(), torch.no_grad(), use_backend("auto" if kernels else "plain"):
        return torch.export.export(raw, (torch.randn(2, 3, 96, 128),), dynamic_shapes=(free,))


def to_torch(raw: Raw, path: str | Path, about: dict[str, Any], kernels: bool = False) -> Path:
    """torch.export's own file; `torch.export.load(path).module()(image)`."""
    stream = io.BytesIO()  # torch's own writer ends the process where the disk is full
    extra = {"saccade.json": _metadata(raw, about)}
    torch.export.save(program(raw, kernels), stream, extra_files=extra)
    with partial(path) as part:
        part.write_bytes(stream.getbuffer())
        WRITTEN.add(sha256(part))
    return Path(path)


def to_aot(raw: Raw, path: str | Path, about: dict[str, Any], kernels: bool = False) -> Path:
    """Machine code by AOTInductor; `torch._inductor.aoti_load_package(path)(image)`."""
    from torch._inductor import aoti_compile_and_package

    settings = {
        "aot_inductor.metadata": {"saccade": _metadata(raw, about)},
        "cpp.dynamic_threads": True,  # as many as torch has where it runs, not where it was made
    }
    with partial(path) as part, quiet():
        aoti_compile_and_package(
            program(raw, kernels), package_path=str(part), inductor_configs=settings
        )
        WRITTEN.add(sha256(part))
    return Path(path)


def to_onnx(raw: Raw, path: str | Path, about: dict[str, Any], kernels: bool = False) -> Path:
    """ONNX in one file, axes by name, `about` in its metadata.

    With `kernels`, our operators are nodes of domain "saccade" (`saccade.ops.onnx`).
    """
    onnx = needed("onnx")
    needed("onnxscript")
    graph, table = program(raw, kernels), {}
    if kernels:
        from saccade.ops.onnx import translations

        table = translations(graph)
    with quiet():
        exported = torch.onnx.export(
            graph, dynamo=True, input_names=["image"], output_names=list(raw.names),
            verbose=False, custom_translation_table=table,
        )  # fmt: skip
    assert exported is not None
    model = exported.model_proto
    axes = [model.graph.input[0].type.tensor_type.shape.dim[i].dim_param for i in (0, 2, 3)]
    _rename(model, dict(zip(axes, AXES, strict=True)))
    del model.metadata_props[:]
    for key, value in {"saccade": _metadata(raw, about), **_flat(about)}.items():
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    with partial(path) as part:
        onnx.save(model, str(part))
    return Path(path)


def _rename(model: Any, names: dict[str, str]) -> None:
    """Give the free axes of a graph their names everywhere."""
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _metadata(raw: Raw, about: dict[str, Any]) -> str:
    return json.dumps({"format": FORMATS["export"], **about, "outputs": list(raw.names)})


def _flat(about: dict[str, Any]) -> dict[str, str]:
    """Classes and normalisation as separate metadata entries, for programs that read those."""
    return {key: json.dumps(about[key]) for key in ("classes", "mean", "std") if key in about}
