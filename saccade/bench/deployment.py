"""A model in all the ways in which it can be deployed here, each in a process of its own, in turns.

    eager, compiled                 PyTorch
    onnx                            ONNX Runtime, ONNX's own operators
    onnx, our operators             ONNX Runtime with `saccade.kernels()`
    onnx, int8                      products and convolutions in eight bits
    openvino                        the same ONNX file in OpenVINO, where it is installed
    ... in bf16                     eager and OpenVINO

Weights are drawn by chance and ranges of eight bits measured on noise: what is compared is time,
memory, size and how far outputs lie from eager's, not accuracy.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade import export
from saccade.bench.clock import Samples
from saccade.bench.models import build
from saccade.ops import native

EAGER = "eager"
CALIBRATION = 4  # images of noise

Watch = Callable[[str, float], None]


@dataclass(frozen=True)
class Way:
    """How a model is run: what worker.py is told, and the file it takes."""

    name: str
    way: str
    file: str = ""
    half: bool = False
    compiled: bool = False
    kernels: bool = False
    needs: str = ""


WAYS = (
    Way(EAGER, "torch"),
    Way("compiled", "torch", compiled=True),
    Way("onnx", "onnx", "net.onnx", needs="onnxruntime"),
    Way("onnx, our operators", "onnx", "kernels.onnx", kernels=True, needs="onnxruntime"),
    Way("onnx, int8", "onnx", "net.int8.onnx", needs="onnxruntime"),
    Way("openvino", "openvino", "net.onnx", needs="openvino"),
    Way("eager, bf16", "torch", half=True),
    Way("openvino, bf16", "openvino", "net.onnx", half=True, needs="openvino"),
)


@dataclass(frozen=True)
class Deployed:
    """What one way took: seconds for a batch, bytes in memory at most and on disk."""

    model: str
    way: str
    best: float
    median: float
    cpu: float
    images: float  # a second
    held: int
    file: int  # bytes; 0: nothing but weights
    apart: float  # of the largest output, from eager's


@dataclass
class Deployment:
    """All ways of all models that were measured, and why others were not."""

    rows: list[Deployed]
    left_out: dict[str, str]
    by: str  # which clock ratios are of: "cpu" of one thread, else "wall"
    interrupted: bool = False

    def of_eager(self, row: Deployed) -> float:
        """How many times as fast as eager."""
        eager = next((r for r in self.rows if (r.model, r.way) == (row.model, EAGER)), row)
        return self.seconds(eager) / self.seconds(row)

    def seconds(self, row: Deployed) -> float:
        return row.cpu if self.by == "cpu" else row.best


def deploy(
    names: Sequence[str], folder: Path, size: int = 224, batch: int = 1, threads: int = 1,
    rounds: int = 10, watch: Watch = lambda *_: None,
) -> Deployment:  # fmt: skip
    """Write the files into `folder`, start a process for each way, and let them take turns."""
    result = Deployment([], {}, "cpu" if threads == 1 else "wall")
    workers: dict[tuple[str, Way], subprocess.Popen] = {}
    samples: dict[tuple[str, Way], Samples] = {}
    bytes_held: dict[tuple[str, Way], int] = {}
    settings = {"size": size, "threads": threads}
    noise = np.random.default_rng(0)
    np.save(folder / "image.npy", noise.standard_normal((batch, 3, size, size), np.float32))
    try:
        for name in names:
            place = folder / name
            place.mkdir()
            watch(f"{name}: files", 0)
            wrong = _write(name, place, size, batch)
            for way in WAYS:
                label = f"{name}, {way.name}"
                if way.needs and find_spec(way.needs) is None:
                    result.left_out[label] = f"{way.needs} is not installed"
                elif way.file in wrong:
                    result.left_out[label] = wrong[way.file]
                else:
                    watch(label, 0)
                    worker, why = _start(way, {**settings, "name": name}, place, folder)
                    if worker is None:
                        result.left_out[label] = why
                    else:
                        workers[name, way] = worker
                        samples[name, way] = Samples()
        for round in range(rounds):
            for i, ((name, way), worker) in enumerate([*workers.items()]):
                watch(f"{name}, {way.name}", (round + i / len(workers)) / rounds)
                answer = _ask(worker, 3)
                if "wrong" in answer:  # such as a process killed because memory ran out
                    workers.pop((name, way)).kill()
                    samples.pop((name, way))
                    result.left_out[f"{name}, {way.name}"] = answer["wrong"]
                    continue
                samples[name, way].wall += answer["wall"]
                samples[name, way].cpu += answer["cpu"]
                bytes_held[name, way] = answer["bytes"]
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    for (name, way), sample in samples.items():
        if not sample.wall:
            continue
        timing, place = sample.timing(), folder / name
        file = (place / way.file).stat().st_size if way.file else 0
        apart = _apart(np.load(place / f"{_word(way)}.npy"), np.load(place / "eager.npy"))
        result.rows.append(
            Deployed(name, way.name, timing.best, timing.median, timing.cpu,
                     batch / (timing.cpu if result.by == "cpu" else timing.best),
                     bytes_held[name, way], file, apart)
        )  # fmt: skip
    return result


def _write(name: str, place: Path, size: int, batch: int) -> dict[str, str]:
    """The files of a model; what could not be written, and why."""
    torch.manual_seed(0)
    raw, wrong = export.prepared(build(name, size)[0]), {}
    chance = np.random.default_rng(1)
    images = [chance.standard_normal((1, 3, size, size), np.float32) for _ in range(CALIBRATION)]
    ours = "saccade" in type(raw.model).__module__
    steps: dict[str, Callable[[], Any]] = {
        "net.onnx": lambda: export.to_onnx(raw, place / "net.onnx", {}),
        "kernels.onnx": lambda: export.to_onnx(raw, place / "kernels.onnx", {}, kernels=True),
        "net.int8.onnx": lambda: export.to_int8(
            place / "net.onnx", place / "net.int8.onnx", images
        ),
    }
    for file, step in steps.items():
        if file == "kernels.onnx" and not (ours and native.available()):
            wrong[file] = "it has no operators of ours" if not ours else native.find().why
            continue
        try:
            step()
        except Exception as error:  # exporters raise errors of many kinds
            wrong[file] = f"it is not written: {str(error).strip().partition(chr(10))[0][:200]}"
    return wrong


def _word(way: Way) -> str:
    return way.name.replace(",", "").replace(" ", "_")


def _start(
    way: Way, settings: Mapping[str, Any], place: Path, folder: Path
) -> tuple[subprocess.Popen | None, str]:
    """A process that is ready to be asked, or why there is none."""
    whole = {
        **settings, "way": way.way, "half": way.half, "compiled": way.compiled,
        "kernels": native.kernels() if way.kernels else "", "image": str(folder / "image.npy"),
        "file": str(place / way.file), "output": str(place / f"{_word(way)}.npy"),
    }  # fmt: skip
    path = place / f"{_word(way)}.json"
    path.write_text(json.dumps(whole))
    words = [sys.executable, str(Path(__file__).with_name("worker.py")), str(path)]
    worker = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    answer = _answer(worker)
    if "wrong" in answer:
        worker.kill()
        worker.wait()
        return None, answer["wrong"]
    return worker, ""


def _ask(worker: subprocess.Popen, times: int) -> dict[str, Any]:
    """What so many calls took, or what went wrong."""
    with suppress(BrokenPipeError):  # its process ended, which the answer says
        worker.stdin.write(f"{times}\n")  # type: ignore[union-attr]
        worker.stdin.flush()  # type: ignore[union-attr]
    return _answer(worker)


def _answer(worker: subprocess.Popen) -> dict[str, Any]:
    line = worker.stdout.readline()  # type: ignore[union-attr]
    return json.loads(line) if line else {"wrong": "its process ended"}


def _apart(y: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(y - reference).max() / max(float(np.abs(reference).max()), 1e-12))
