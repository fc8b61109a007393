"""Latency and peak memory of several things side by side, as ratios.

Timings on a shared machine drift; two numbers taken minutes apart say little. So everything to be
compared runs in turns, round after round, and what is reported is the ratio within one run.
"""

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile

from saccade.models import zoo
from saccade.version import __version__
from saccade.words import nearest

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds for one call: wall-clock best and median, and CPU time of the process (best)."""

    best: float
    median: float
    cpu: float
    rounds: int


def interleave(
    calls: Mapping[str, Call], rounds: int = 20, seconds: float = 30.0
) -> dict[str, Timing]:
    """Time each call in turn, at most `rounds` times or for about `seconds`, after one warm-up."""
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    start = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - start > seconds:
            break
        for name, call in calls.items():
            p, t = time.process_time(), time.perf_counter()
            call()
            _finish()
            wall[name].append(time.perf_counter() - t)
            cpu[name].append(time.process_time() - p)
    return {
        name: Timing(
            min(wall[name]), statistics.median(wall[name]), min(cpu[name]), len(wall[name])
        )
        for name in calls
    }


def peak_memory(call: Call) -> int:
    """Bytes that torch held at most during the call, beyond what it held before: exact.

    On CPU this follows torch's own allocations, so it is the same on every run and does not see
    what a library keeps for itself; on CUDA it is the caching allocator's figure.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One thing measured: seconds, peak bytes, and how it compares with the first of its run."""

    name: str
    best: float
    median: float
    cpu: float
    peak: int
    slower: float  # best time over the baseline's
    heavier: float  # peak memory over the baseline's


def compare(
    calls: Mapping[str, Call], base: str | None = None, rounds: int = 10, seconds: float = 60.0
) -> list[Row]:
    """Time and weigh the calls in one run; ratios are to `base`, the first if not given."""
    times = interleave(calls, rounds, seconds)
    peaks = {name: peak_memory(call) for name, call in calls.items()}
    base = base or next(iter(calls))
    if base not in calls:
        raise ValueError(
            f"bench: nothing named {base!r} ran; did you mean {nearest(base, calls)!r}?"
        )
    rows = []
    for name, t in times.items():
        slower, heavier = t.best / times[base].best, peaks[name] / max(peaks[base], 1)
        rows.append(Row(name, t.best, t.median, t.cpu, peaks[name], slower, heavier))
    return rows


def models(
    names: Sequence[str],
    size: int = 224,
    batch: int = 1,
    train: bool = False,
    compiled: bool = False,
) -> dict[str, Call]:
    """A forward pass (in eval mode, fused) or a training step of each model, ours or timm's."""
    calls: dict[str, Call] = {}
    image = torch.randn(batch, 3, size, size)
    for name in names:
        if not timm.is_model(name):
            zoo.family_of(name)  # says what was probably meant
        model = timm.create_model(name).train(train)
        if not train and isinstance(model, zoo.Classifier):
            model.fuse()
        run = torch.compile(model) if compiled else model
        calls[name] = _step(run, image) if train else _forward(run, image)
    return calls


def _forward(model: Callable, image: torch.Tensor) -> Call:
    def call() -> None:
        with torch.inference_mode():
            model(image)

    return call


def _step(model: nn.Module | Callable, image: torch.Tensor) -> Call:
    def call() -> None:
        model(image).square().mean().backward()
        for parameter in getattr(model, "parameters", list)():
            parameter.grad = None

    return call


def limits(side: int = 1024) -> dict[str, float]:
    """What this machine could do at best, with the threads in use: GFLOP/s and GB/s, in fp32."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    source, target = torch.randn(2**24), torch.empty(2**24)  # 64 MB each, beyond most caches
    times = interleave({"product": lambda: a @ b, "copy": lambda: target.copy_(source)}, 10, 10)
    return {
        "GFLOP/s": 2 * side**3 / times["product"].best / 1e9,
        "GB/s": 2 * source.nbytes / times["copy"].best / 1e9,
    }


def machine() -> dict[str, Any]:
    """What a figure must be read with."""
    return {
        "saccade": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def table(rows: Sequence[Row], title: str) -> Table:
    out = Table(title=title)
    for column in ("", "best ms", "median ms", "slower", "peak MB", "heavier"):
        out.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        out.add_row(
            row.name, f"{row.best * 1e3:.1f}", f"{row.median * 1e3:.1f}", f"{row.slower:.2f}x",
            f"{row.peak / 2**20:.1f}", f"{row.heavier:.2f}x",
        )  # fmt: skip
    return out


def append_json(rows: Sequence[Row], path: str | Path, **about: Any) -> None:
    """A line per row, each with the versions and settings it was measured under."""
    stamp = {**about, "machine": machine()}
    with open(path, "a") as file:
        for row in rows:
            file.write(json.dumps({**asdict(row), **stamp}) + "\n")


def draw(rows: Sequence[Row], path: str | Path, title: str) -> None:
    """Bars of time and memory side by side, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [row.name for row in rows]
    figure, axes = plt.subplots(
        1, 2, figsize=(9, 0.45 * len(rows) + 1.2), sharey=True, layout="constrained"
    )
    columns = (
        ("best time, ms", [row.best * 1e3 for row in rows], [row.slower for row in rows]),
        ("peak memory, MB", [row.peak / 2**20 for row in rows], [row.heavier for row in rows]),
    )
    for axis, (label, values, ratios) in zip(axes, columns, strict=True):
        bars = axis.barh(names, values, color="#0072B2")
        axis.bar_label(
            bars, [f" {value:.1f} ({r:.2f}x)" for value, r in zip(values, ratios, strict=True)]
        )
        axis.set(title=label, xlim=(0, 1.35 * max(values)))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)
