"""GPU kernels in Triton for the window operators: the functions of the plain forms, fused.

`saccade.ops.sasa.local_attention` and `saccade.ops.qna.aggregate` come here for tensors on a GPU if
`available()`; `form="triton"` of the former insists.

Importing this package does not import Triton. `SACCADE_TRITON=0` keeps to the other paths.

All kernels are gathers: a program owns some pixels, walks over the offsets of the window and adds
what it reads to what it owns. Nothing is added atomically, so a result does not depend on the order
in which programs run; and no product reaches past a window, so neither does a NaN.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch

OLDEST = (8, 0)  # Ampere: the first with bf16 arithmetic; the kernels are compiled for it here


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the kernels can be launched here: Triton, and a GPU it compiles for."""
    return not _obstacle()


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
    if torch.version.hip is not None:
        return "ROCm: the kernels are compiled and checked for CUDA only"
    if torch.cuda.get_device_capability() < OLDEST:
        return f"compute capability below {OLDEST[0]}.{OLDEST[1]}"
    return ""
