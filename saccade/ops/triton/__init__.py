"""GPU kernels in Triton for the window operators: the functions of the plain forms, fused.

`saccade.ops.sasa.local_attention` and `saccade.ops.qna.aggregate` come here for tensors on a GPU if
`ready()`; `backend="triton"` forces them.

Importing this package does not import Triton. `SACCADE_TRITON=0` keeps to the other paths.

All kernels are gathers: a program owns some pixels, walks over the offsets of the window and adds
what it reads to what it owns. Nothing is added atomically, so a result does not depend on the order
in which programs run; and no product reaches past a window, so neither does a NaN.
"""

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

OLDEST = (8, 0)  # Ampere: the first with bf16 arithmetic; the kernels are compiled for it here


TILE = 1024  # numbers that a program owns: see saccade.ops.triton.tune


@torch.compiler.assume_constant_result
def ready() -> bool:
    """Whether the kernels can be launched here: Triton, and a GPU it compiles for."""
    return not _obstacle() or _interpreted()


def reaches(x: Tensor) -> bool:
    """Whether a kernel can read the tensor: on a GPU, or anywhere in Triton's interpreter."""
    return x.is_cuda or _interpreted()


@torch.compiler.assume_constant_result
def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "") == "1" and find_spec("triton") is not None


def kernels(word: str) -> ModuleType:
    """The kernels of a paper; only now is Triton itself imported."""
    return import_module(f"saccade.ops.triton.{word}_kernels")


def power_of_two(n: int) -> int:
    """Tiles have sides of powers of two; what is beyond n is masked."""
    return 1 << (n - 1).bit_length()


def block(width: int) -> int:
    """Pixels of a tile that is `width` numbers wide: enough for a warp to read whole lines."""
    return max(8, min(128, TILE // power_of_two(width)))


def where() -> str:
    """One line: which backend window attention uses on GPU here, and why."""
    obstacle = _obstacle()
    if obstacle:
        return f"plain PyTorch ({obstacle})"
    return f"Triton kernels, {torch.cuda.get_device_name()}"


@cache
def _obstacle() -> str:
    if os.environ.get("SACCADE_TRITON", "").strip().lower() in ("0", "off", "no", "false"):
        return "SACCADE_TRITON=0"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    chosen = os.environ.get("SACCADE_TRITON", "").strip() == "1"
    if torch.version.hip is not None and not chosen:
        return "ROCm: compiled for gfx942, but not yet run by us; SACCADE_TRITON=1 takes them"
    if torch.cuda.get_device_capability() < OLDEST:
        return f"compute capability below {OLDEST[0]}.{OLDEST[1]}"
    return ""
