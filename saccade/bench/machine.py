"""The limits of this machine, and the versions and settings that a measurement depends on."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch

from saccade.bench.clock import Call, interleave
from saccade.ops import native
from saccade.ops.linear import linear
from saccade.ops.native.linear import pays
from saccade.version import __version__

SIDE = 1024  # of the square matrices that are multiplied
FLOATS = 2**24  # that are copied: 64 MB, beyond most caches
HALF_SIDE = 256  # in half precision: without instructions for it, that takes long
PRODUCT, HALF, COPY = "a matrix product", "one in half precision", "a copy"
OWN = "one by our kernels"  # where torch's library does not use all that the processor has


class Limits(NamedTuple):
    """The fastest large matrix product (fp32 or the dtype at hand), and a copy of memory."""

    gflops: float  # 1e9 floating-point operations a second
    gbytes: float  # 1e9 bytes a second, read and written

    def __str__(self) -> str:
        return f"{self.gflops:.0f} GFLOP/s, {self.gbytes:.0f} GB/s"


def limit_calls(
    dtype: torch.dtype = torch.float32, device: str = "cpu", side: int = SIDE
) -> dict[str, Call]:
    """What is timed for `limits`, to take its turns beside what is measured."""
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    source = torch.randn(FLOATS, device=device)
    target = torch.empty_like(source)
    calls: dict[str, Call] = {PRODUCT: lambda: a @ b, COPY: lambda: target.copy_(source)}
    if device == "cpu" and native.available() and pays():
        calls[OWN] = lambda: linear(a, b)
    if dtype != torch.float32:
        half = torch.randn(HALF_SIDE, HALF_SIDE, device=device).to(dtype)
        calls[HALF] = lambda: half @ half
    return calls


def limits_of(seconds: Mapping[str, float], side: int = SIDE) -> Limits:
    """What the best times of `limit_calls` say."""
    sides = {PRODUCT: side, OWN: side, HALF: HALF_SIDE}
    products = [2 * n**3 / max(seconds[name], 1e-9) for name, n in sides.items() if name in seconds]
    return Limits(max(products) / 1e9, 2 * 4 * FLOATS / max(seconds[COPY], 1e-9) / 1e9)


def limits(side: int = SIDE) -> Limits:
    """The limits of this machine in fp32 on its CPU, with the threads in use."""
    times = interleave(limit_calls(side=side), 10, 10)
    return limits_of({name: time.best for name, time in times.items()}, side)


def free_memory() -> float:
    """Bytes that can be had without swapping, where the system says so."""
    path = Path("/proc/meminfo")
    if not path.is_file():
        return float("inf")
    lines = dict(line.split(":") for line in path.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def stamp() -> dict[str, Any]:
    """The versions and settings that a measurement was made with."""
    return {
        "saccade": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "kernels": native.where(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
