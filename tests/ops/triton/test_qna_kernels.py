"""Learned-query aggregation as machine code, without a GPU."""

import pytest
import torch

from tests.ops.triton.check import AMD, ARCHITECTURES, compiled, label, without_gpu
from tests.ops.triton.test_qna import aggregate, example


def check_machine_code(arch, choices, stride=1, fold=True, **shape):
    from saccade.ops.qna import AGGREGATE
    from saccade.ops.triton.tune import CHOICES

    tensors = example(**shape)
    padding = shape["k"] // 2

    def step():
        leaves = [None if t is None else t.requires_grad_() for t in tensors]
        aggregate(*leaves, stride, padding, fold).sum().backward()

    with without_gpu(AGGREGATE):
        variants = compiled(arch, step, choices)
    assert [(f.kernel, f.warps) for f in variants] == [
        (kernel, warps)
        for kernel in ("forward", "windows", "pixels")
        for warps, _ in CHOICES[:choices]
    ]
    for kernel in variants:
        assert 0 < kernel.registers <= 512 if arch in AMD else kernel.registers <= 255
        assert kernel.stack == 0, f"spills: {kernel}"
        assert kernel.occupancy(arch) >= 0.12, kernel
    return variants


VARIANTS = [
    {"k": 3, "L": 2, "heads": 8, "d": 8, "H": 14, "W": 18, "dtype": torch.float16},
    {"k": 7, "L": 1, "heads": 16, "d": 8, "dtype": torch.bfloat16},
    {"k": 7, "L": 4, "heads": 16, "d": 8, "stride": 2},
    {"k": 5, "L": 2, "heads": 6, "d": 32, "stride": 2, "dtype": torch.bfloat16},
    {"k": 3, "L": 3, "heads": 3, "d": 20, "fold": False},
    {"k": 3, "L": 1, "heads": 2, "d": 128, "weighted": False},
    {"k": 3, "L": 2, "heads": 1, "d": 4, "H": 1, "W": 1},
]


def test_compiles_to_machine_code_without_spills(compiler):
    compiler(check_machine_code, 90, 1, **VARIANTS[0])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("variant", VARIANTS, ids=label)
def test_every_variant_compiles_without_spills(compiler, arch, variant):
    compiler(check_machine_code, arch, None, **variant)
