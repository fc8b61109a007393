"""What Triton makes of the GPU kernels, without a GPU: registers, spills, shared memory, occupancy.

    python tools/gpu.py              the first variant of each kernel, for every architecture
    python tools/gpu.py --all        every variant of tests/ops/triton

Exit code 1 if a kernel spills or does not compile.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator

import torch


def rows(variants: int | None) -> Iterator[tuple[str, object, object]]:
    """Word, architecture, and a compiled kernel or why there is none."""
    from tests.ops.triton import test_qna_kernels, test_sasa_kernels
    from tests.ops.triton.check import ARCHITECTURES

    of_words = {"sasa": (test_sasa_kernels, {"heads": 2}), "qna": (test_qna_kernels, {})}
    for word, (module, more) in of_words.items():
        for arch in ARCHITECTURES:
            for variant in module.VARIANTS[:variants]:
                try:
                    for kernel in module.check_machine_code(arch, None, **more, **variant):
                        yield word, arch, kernel
                except Exception as error:
                    yield word, arch, f"{variant}: {type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="every variant")
    options = parser.parse_args()
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-")
    torch.set_num_threads(1)
    failures = count = 0
    head = ("kernel", "arch", "", "warps", "registers", "stack", "shared", "occupancy")
    print("{:6}{:8}{:9}{:>6}{:>11}{:>7}{:>8}{:>11}".format(*head))
    for word, arch, kernel in rows(None if options.all else 1):
        count += 1
        if isinstance(kernel, str):
            failures += 1
            print(f"{word:6}{arch!s:8}FAILED {kernel}", flush=True)
            continue
        numbers = kernel.warps, kernel.registers, kernel.stack, kernel.shared
        shown = "{:>6}{:>11}{:>7}{:>8}".format(*numbers) + f"{kernel.occupancy(arch):>11.0%}"
        print(f"{word:6}{arch!s:8}{kernel.kernel:9}{shown}", flush=True)
    print(f"{count} kernels, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(main())
