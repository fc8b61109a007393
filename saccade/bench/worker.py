"""A model in one of the ways it is deployed, in a process of its own: runtimes' threads spin.

    python worker.py SETTINGS.json

answers each line on stdin, a number of calls, with a line of JSON: seconds by the wall clock and by
the CPU, and what the process holds in memory. The first line it writes is its output's place, or
what went wrong. Run by its path, so that a runtime is not measured together with torch.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def onnx(settings: dict[str, Any], image: np.ndarray) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = settings["threads"], 1
    options.log_severity_level = 4
    if settings["kernels"]:
        options.register_custom_ops_library(settings["kernels"])
    session = onnxruntime.InferenceSession(
        settings["file"], options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"image": image})[0]


def openvino(settings: dict[str, Any], image: np.ndarray) -> Callable[[], Any]:
    runtime = import_module("openvino")  # which need not be installed
    hints = {
        "INFERENCE_NUM_THREADS": settings["threads"],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if settings["half"] else "f32",
    }
    core = runtime.Core()
    model = core.read_model(settings["file"])
    model.reshape(list(image.shape))  # with sizes left open it is several times slower
    compiled = core.compile_model(model, "CPU", hints)
    request = compiled.create_infer_request()
    return lambda: request.infer({0: image})[compiled.output(0)]


def torch(settings: dict[str, Any], image: np.ndarray) -> Callable[[], Any]:
    import torch

    from saccade import export
    from saccade.bench.models import build

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    dtype = torch.bfloat16 if settings["half"] else torch.float32
    net: Any = export.prepared(build(settings["name"], settings["size"])[0]).to(dtype)
    net = net.to(memory_format=torch.channels_last)
    x = torch.from_numpy(image).to(dtype).contiguous(memory_format=torch.channels_last)
    if settings["compiled"]:
        net = torch.compile(net)

    def call() -> Any:
        with torch.inference_mode():
            return net(x)[0].float().numpy()

    return call


def most_memory() -> int:
    """Bytes that this program held at most; the system's other figure also counts its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


WAYS = {"onnx": onnx, "openvino": openvino, "torch": torch}


def main(path: str) -> None:
    settings = json.loads(Path(path).read_text())
    image = np.load(settings["image"])
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print is no answer

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        call = WAYS[settings["way"]](settings, image)
        np.save(settings["output"], call())
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line] or [""]
        answer({"wrong": f"{type(error).__name__}: {lines[0][:200]}"})
        return
    answer({"output": settings["output"]})
    for line in sys.stdin:
        wall, cpu = [], []
        for _ in range(int(line)):
            w, c = time.perf_counter(), time.process_time()
            call()
            wall.append(time.perf_counter() - w)
            cpu.append(time.process_time() - c)
        answer({"wall": wall, "cpu": cpu, "bytes": most_memory()})


if __name__ == "__main__":
    main(sys.argv[1])
