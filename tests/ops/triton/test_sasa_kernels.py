"""Local attention as machine code, without a GPU."""

import pytest
import torch

from tests.ops.triton.check import AMD, ARCHITECTURES, compiled, gradients, label, without_gpu
from tests.ops.triton.test_sasa import example, local_attention


def check_machine_code(arch, choices, heads, window, border, **shape):
    from saccade.ops.sasa import LOCAL_ATTENTION
    from saccade.ops.triton.tune import CHOICES

    tensors, g = example(heads=heads, window=window, **shape)

    def step():
        gradients(lambda *t: local_attention(*t, heads, window, border), tensors, g)

    with without_gpu(LOCAL_ATTENTION):
        variants = compiled(arch, step, choices)
    assert [(f.kernel, f.warps) for f in variants] == [
        (kernel, warps)
        for kernel in ("forward", "queries", "keys")
        for warps, _ in CHOICES[:choices]
    ]
    for kernel in variants:
        assert 0 < kernel.registers <= 512 if arch in AMD else kernel.registers <= 255
        assert kernel.stack == 0, f"spills: {kernel}"
        assert kernel.occupancy(arch) >= 0.12, kernel
    return variants


VARIANTS = [
    {"d": 32, "window": 7, "dtype": torch.float16, "layout": "nchw", "border": "mask"},
    {"d": 8, "window": 7, "dtype": torch.bfloat16, "layout": "nhwc", "border": "zero"},
    {"d": 4, "window": 15, "dtype": torch.bfloat16, "layout": "nchw", "border": "mask"},
    {"d": 64, "window": 7, "dtype": torch.bfloat16, "layout": "nhwc", "border": "zero"},
    {"d": 128, "window": 15, "dtype": torch.float32, "layout": "nchw", "border": "zero"},
    {"d": 128, "window": 15, "dtype": torch.float32, "layout": "nhwc", "border": "zero"},
    {"d": 20, "window": 5, "dtype": torch.float32, "layout": "nhwc", "border": "mask"},
    {"d": 6, "window": 13, "dtype": torch.float32, "layout": "nchw", "border": "zero"},
    {"d": 16, "window": 3, "H": 1, "W": 1, "border": "zero"},
    {"d": 16, "window": 7, "position": False, "border": "mask"},
    {"d": 16, "window": 7, "content": False, "tables": 2, "H": 16, "W": 16, "border": "zero"},
]


def test_compiles_to_machine_code_without_spills(compiler):
    compiler(check_machine_code, 90, 1, heads=2, **VARIANTS[0])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("variant", VARIANTS, ids=label)
def test_every_variant_compiles_without_spills(compiler, arch, variant):
    compiler(check_machine_code, arch, None, heads=2, **variant)
