"""Export a trained model to a file that runs elsewhere, checked against the model.

    ready = prepared(task)                a copy in eval mode, re-parameterised, norms folded in
    to_onnx(ready, "net.onnx", about)     ONNX, for onnxruntime and the rest of the world
    to_torch(ready, "net.pt2", about)     torch.export, for torch without saccade
    to_aot(ready, "net.aot.pt2", about)   compiled ahead of time, for torch without a compiler
    worst = apart(Raw(task), runner(path))    the largest difference over random sizes

Batch, height and width stay free. Outputs are the task's raw tensors; what makes boxes or masks of
them stays outside the graph. `about` (names, classes, normalisation) travels inside the file.

A torch program is code: to open one is to run whatever it says. `runner` opens those that this
process wrote, and others only where the caller trusts them.
"""

import copy
import hashlib
import io
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from saccade import files
from saccade.ops import native
from saccade.ops.operator import use_backend
from saccade.version import FORMATS

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "aot": ".aot.pt2"}
CLOSE = 1e-4  # of the largest output
ENOUGH = 128  # multiplications for each number in and out, for eight bits to be faster
AXES = ("batch", "height", "width")

Run = Callable[[np.ndarray], dict[str, np.ndarray]]  # image to outputs by name
OPENED_BY = {".aot.pt2": "torch._inductor.aoti_load_package", ".pt2": "torch.export.load"}

_written: set[str] = set()  # checksums of the torch programs that this process wrote


class Raw(nn.Module):
    """A network or task in the form for export: an image in, tensors out, as `names` order them."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.names = tuple(self.outputs(torch.zeros(1, 3, 64, 64)))

    def outputs(self, image: Tensor) -> dict[str, Tensor]:
        task = getattr(self.model, "raw", None)
        return task(image) if callable(task) else {"logits": self.model(image)}

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.outputs(image).values())


def prepared(model: nn.Module) -> Raw:
    """A copy for export: in eval mode, branches re-parameterised, BatchNorm folded.

    It computes the same function: a fold that would change it is not made, and the file is compared
    with the original model, so that a wrong `fuse` is noticed.
    """
    model = copy.deepcopy(model).cpu().float().eval()
    with torch.no_grad():
        for module in list(model.modules()):
            fuse = getattr(module, "fuse", None)
            if callable(fuse):
                fuse()
        folded = copy.deepcopy(model)
        fold_norms(folded)
        plain, other = Raw(model), Raw(folded)
        return other if apart(plain, runner_of(other), count=2) < CLOSE else plain


@torch.no_grad()
def fold_norms(model: nn.Module) -> int:
    """Fold every BatchNorm that directly follows a convolution into it; gives their number.

    norm(W x + b) = (g / s) W x + (g / s) (b - m) + c        s = sqrt(variance + epsilon)
    """
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # outputs, kept alive for their addresses
    pairs: dict[nn.BatchNorm2d, nn.Conv2d] = {}

    def after(conv: nn.Module, _: Any, output: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        outputs[id(output)] = conv, output

    def before(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in outputs and isinstance(norm, nn.BatchNorm2d):
            pairs[norm] = outputs[id(inputs[0])][0]

    hooks = [m.register_forward_hook(after) for m in model.modules() if isinstance(m, nn.Conv2d)]
    hooks += [
        m.register_forward_pre_hook(before)
        for m in model.modules()
        if isinstance(m, nn.BatchNorm2d)
    ]
    try:
        model(torch.zeros(1, 3, 64, 64))
    finally:
        for hook in hooks:
            hook.remove()
    often = list(pairs.values())  # heads share a convolution and norm each level by itself
    pairs = {norm: conv for norm, conv in pairs.items() if often.count(conv) == 1}
    names = {module: name for name, module in model.named_modules()}
    for norm, conv in pairs.items():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps,
            norm.weight, norm.bias,
        )  # fmt: skip
        model.set_submodule(names[norm], nn.Identity())
    return len(pairs)


# -- formats --------------------------------------------------------------------------------


def program(raw: Raw, kernels: bool = False) -> torch.export.ExportedProgram:
    """torch.export's graph, for any batch, height and width, in operators that torch itself has.

    With `kernels` it calls the operators of saccade, which then must be there where it runs.
    """
    free = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    with _quiet(), torch.no_grad(), use_backend("auto" if kernels else "plain"):
        return torch.export.export(raw, (torch.randn(2, 3, 96, 128),), dynamic_shapes=(free,))


def to_torch(raw: Raw, path: str | Path, about: dict[str, Any], kernels: bool = False) -> Path:
    """torch.export's own file; `torch.export.load(path).module()(image)`."""
    stream = io.BytesIO()  # torch's own writer ends the process where the disk is full
    extra = {"saccade.json": _metadata(raw, about)}
    torch.export.save(program(raw, kernels), stream, extra_files=extra)
    with partial(path) as part:
        part.write_bytes(stream.getbuffer())
        _written.add(_sha256(part))
    return Path(path)


def to_aot(raw: Raw, path: str | Path, about: dict[str, Any], kernels: bool = False) -> Path:
    """Machine code by AOTInductor; `torch._inductor.aoti_load_package(path)(image)`."""
    from torch._inductor import aoti_compile_and_package

    settings = {
        "aot_inductor.metadata": {"saccade": _metadata(raw, about)},
        "cpp.dynamic_threads": True,  # as many as torch has where it runs, not where it was made
    }
    with partial(path) as part, _quiet():
        aoti_compile_and_package(
            program(raw, kernels), package_path=str(part), inductor_configs=settings
        )
        _written.add(_sha256(part))
    return Path(path)


def to_onnx(raw: Raw, path: str | Path, about: dict[str, Any], kernels: bool = False) -> Path:
    """ONNX in one file, axes by name, `about` in its metadata.

    With `kernels`, our operators are nodes of domain "saccade" (`saccade.ops.onnx`).
    """
    onnx = _needed("onnx")
    _needed("onnxscript")
    graph, table = program(raw, kernels), {}
    if kernels:
        from saccade.ops.onnx import translations

        table = translations(graph)
    with _quiet():
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


def to_int8(
    source: str | Path, path: str | Path, images: Iterable[np.ndarray], only: Sequence[str] = ()
) -> Path:
    """The ONNX file with 8-bit products and convolutions, their ranges measured on images.

    Args:
        source: a file of `to_onnx`
        path: where to write
        images: batches, B 3 H W, on which ranges are measured
        only: names of the nodes to quantise, such as `wide_products(source)`; all if empty
    """
    quantization = _needed("onnxruntime.quantization")

    class Calibration(quantization.CalibrationDataReader):
        def __init__(self):
            self.images = iter(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else {"image": image}

    with partial(path) as part, _quiet():
        quantization.quantize_static(
            str(source), str(part), Calibration(), per_channel=True,
            op_types_to_quantize=["Conv", "MatMul", "Gemm"], nodes_to_quantize=list(only) or None,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    return Path(path)


def wide_products(source: str | Path) -> list[str]:
    """The nodes of an ONNX file with enough arithmetic per number to be faster in eight bits.

    Numbers are turned into eight bits and back one by one. A product that makes N numbers of C does
    K N / (C + N) multiplications for each of them, where K is C, or C times a window's pixels.
    """
    graph = _needed("onnx").load(str(source)).graph
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}

    def work(node: Any) -> float:
        shape = weights.get(node.input[1], ()) if len(node.input) > 1 else ()
        group = next((a.i for a in node.attribute if a.name == "group"), 1)
        if node.op_type == "Conv" and len(shape) > 2 and group == 1:
            outputs, inputs, *window = shape
            return math.prod(window) * inputs * outputs / (inputs + outputs)
        if node.op_type in ("MatMul", "Gemm") and len(shape) == 2:
            return math.prod(shape) / sum(shape)
        return 0

    return [node.name for node in graph.node if work(node) >= ENOUGH]


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


# -- running and checking -------------------------------------------------------------------


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
    if not trusted and hashlib.sha256(content).hexdigest() not in _written:
        raise ValueError(
            f"export: {str(path)!r} is a torch program, which may run any code once it is opened; "
            f"if you trust who made it, open it with {OPENED_BY[ending]}, or give trusted=True"
        )
    try:
        if ending == ENDINGS["aot"]:
            from torch._inductor import aoti_load_package

            with _quiet():
                compiled: Any = aoti_load_package(str(path))
            return _named(compiled, json.loads(compiled.get_metadata()["saccade"])["outputs"])
        extra = {"saccade.json": ""}
        loaded = torch.export.load(io.BytesIO(content), extra_files=extra).module()
        return _named(loaded, json.loads(extra["saccade.json"])["outputs"])
    except Exception as error:  # whatever a damaged archive makes of torch
        raise _unopened(path, error) from error


def _onnx_runner(path: Path, threads: int | None) -> Run:
    ort = _needed("onnxruntime")
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def runner_of(raw: Raw) -> Run:
    return _named(raw, raw.names)


def compiled(raw: Raw, image: np.ndarray) -> Run:
    """By torch.compile, ready for images of this size."""
    run = _named(torch.compile(raw), raw.names)
    with _quiet():
        run(image)
    return run


def _named(call: Callable[[Tensor], Any], names: Sequence[str]) -> Run:
    def run(image: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = call(torch.from_numpy(image))
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    return run


def apart(raw: Raw, run: Run, count: int = 4, seed: int = 0) -> float:
    """The largest difference to eager over random batches and sizes, over the largest output."""
    chance, worst = np.random.default_rng(seed), 0.0
    for _ in range(count):
        B, (H, W) = int(chance.integers(1, 4)), chance.integers(64, 180, 2).tolist()
        image = chance.standard_normal((B, 3, H, W), np.float32)
        wanted, got = runner_of(raw)(image), run(image)
        for name, value in wanted.items():
            if got[name].shape != value.shape:
                return math.inf
            scale = max(float(np.abs(value).max()), 1e-12)
            gap = float(np.abs(got[name] - value).max()) / scale
            worst = math.inf if math.isnan(gap) else max(worst, gap)
    return worst


def figures(task: Any, run: Run, batches: Iterable[Any]) -> dict[str, float]:
    """A task's own figures, counted on the outputs of an exported file."""
    metric = task.metric()

    def graph(image: Tensor) -> dict[str, Tensor]:
        outputs = run(np.ascontiguousarray(image.numpy()))
        return {name: torch.from_numpy(value) for name, value in outputs.items()}

    for part in batches:
        for image, size, target in _unpadded(part):
            output = task.through_graph(graph, image)
            metric.update({**output, "input": image, "size": size}, target)
    return metric.compute()


def _unpadded(part: Any) -> Generator[tuple[Tensor, Tensor, dict[str, Any]]]:
    """A batch as it is, or image by image if sizes differ: graphs take images without padding."""
    if (part.size == part.size[0]).all():
        yield part.image, part.size, part.target
        return
    for i, (H, W) in enumerate(part.size.tolist()):
        one = slice(i, i + 1)
        target = {name: values[one] for name, values in part.target.items()}
        yield part.image[one, :, :H, :W], part.size[one], target


# -- around ---------------------------------------------------------------------------------


def _needed(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"export: needs {module.partition('.')[0]}; pip install 'saccade[export]'"
        ) from error


@contextmanager
def partial(path: str | Path) -> Generator[Path]:
    """A temporary file beside `path`, which is renamed to it on success and else deleted.

    An older file of that name stays whole until then. The ending stays, because torch checks it.
    """
    part = Path(path).with_name(f"part-{os.getpid()}-{Path(path).name}")
    try:
        with files.writing(part.with_name(re.sub(r"^(part-\d+-)+", "", Path(path).name))):
            yield part
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _quiet() -> Generator[None]:
    """Without the messages and warnings of the exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
