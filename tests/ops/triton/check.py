"""What the tests of the kernels share: an error measure, and a GPU that need not be there."""

import re
import subprocess
import tempfile
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import torch

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}


def gradients(f, tensors, g):
    """Output and gradients of sum(f * g) with respect to the tensors that are there."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    y = f(*leaves)
    leaves = [t for t in leaves if t is not None]
    return y, *torch.autograd.grad(y, leaves, g, materialize_grads=True)


def compare(ours, plain, tensors, g):
    """Output and gradients against the plain form in float64, by the largest deviation."""
    got = gradients(ours, tensors, g)
    exact = [None if t is None else t.double() for t in tensors]
    want = gradients(plain, exact, g.double())
    assert [t.dtype for t in got] == [g.dtype, *(t.dtype for t in tensors if t is not None)]
    largest = max(t.abs().max() for t in want[1:])
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        # A gradient may be zero up to the rounding of the others: of windows that hold one pixel.
        unit = b.abs().max() if index == 0 else torch.maximum(b.abs().max(), 0.1 * largest)
        error = ((a.double() - b).abs().max() / unit).item()
        assert error <= TOLERANCE[g.dtype], f"tensor {index}: {error}"
    return got


def label(case):
    """A name for a test."""
    return "-".join(f"{key}={str(value).removeprefix('torch.')}" for key, value in case.items())


def without_gpu(operator):
    """Let an operator's Triton kernels take tensors that are on no GPU."""
    kernel = replace(operator.kernels["triton"], ready=lambda: True, takes=lambda *inputs: True)
    return mock.patch.dict(operator.kernels, triton=kernel)


ARCHITECTURES = (80, 90, 100, "gfx942")  # compute capabilities of NVIDIA's, and one of AMD's
# Of a multiprocessor (NVIDIA) or of a SIMD, four to a compute unit (AMD): 32-bit registers, and
# warps at most; and the bytes of shared memory of the whole, from the vendors' tables.
NVIDIA = {80: (65536, 64, 164 << 10), 90: (65536, 64, 228 << 10), 100: (65536, 64, 228 << 10)}
AMD = {"gfx942": (512, 8, 64 << 10)}  # registers: for each of a warp's lanes


class Compiled(NamedTuple):
    kernel: str
    warps: int
    registers: int
    stack: int  # bytes a thread: what has been spilled lies there
    shared: int

    def occupancy(self, arch) -> float:
        """The share of the warps that a multiprocessor can hold, as registers and memory allow."""
        if arch in AMD:
            registers, most, memory = AMD[arch]
            held = min(most, registers // (-(-self.registers // 8) * 8))
            groups = memory // max(1, self.shared)
            return min(held * 4, groups * self.warps) / (most * 4)
        registers, most, memory = NVIDIA[arch]
        one = -(-self.registers * 32 // 256) * 256 * self.warps  # handed out in 256s to a warp
        groups = min(registers // one, memory // (self.shared + 1024), most // self.warps, 32)
        return groups * self.warps / most


def compiled(arch, f, choices) -> list[Compiled]:
    """The kernels that f would launch on a GPU, in their first few configurations, as machine code.

    f runs on CPU tensors. Every launch goes through Triton's own path (specialisation of the
    arguments, compiler, assembler) up to where it would load the result onto a device.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner

    device = mock.Mock()
    amd = arch in AMD
    target = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", arch, 32)
    device.get_current_target.return_value = target
    device.get_current_device.return_value = arch  # what has been compiled is kept per device
    device.get_current_stream.return_value = 0
    variants = []

    def compile_only(self, *args, grid, warmup, **kwargs):
        for config in self.configs[:choices]:
            options = config.all_kwargs()
            if amd:  # which has no bound on registers
                options.pop("maxnreg", None)
            kernel = self.fn.run(*args, grid=grid, warmup=True, **kwargs, **options)
            variants.append(_measure(self.base_fn.__name__, options["num_warps"], kernel))

    driver.set_active(device)
    with mock.patch.object(Autotuner, "run", compile_only):
        f()
    return variants


def _measure(name, warps, kernel):
    from triton import knobs

    if "amdgcn" in kernel.asm:
        text = re.findall(r"\.(\w+): +(\d+)$", kernel.asm["amdgcn"], re.M)
        usage = {key: int(n) for key, n in text}
        spills = usage["vgpr_spill_count"] + usage["sgpr_spill_count"]
        stack = usage["private_segment_fixed_size"] + spills
        registers = usage["vgpr_count"] + usage.get("agpr_count", 0)
        return Compiled(name, warps, registers, stack, usage["group_segment_fixed_size"])

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    usage = {key: int(n) for key, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return Compiled(
        name, warps, usage["REG"], usage["STACK"] + usage["LOCAL"], kernel.metadata.shared
    )
