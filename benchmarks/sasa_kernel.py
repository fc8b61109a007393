"""How much faster is fused local attention than the public unfold form, and how near the machine?

    python benchmarks/sasa_kernel.py
    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 python benchmarks/sasa_kernel.py    memory reused

Two thirds of unfold's time goes into memory that is new to the process; with memory reused the bars
are lower. One thread, fp32, k = 7, masked border, CPU time, best of interleaved rounds.
"""

import ctypes
import gc
import os
from pathlib import Path

import torch
from timing import against, gemm_gflops, interleaved, training, wall
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops.sasa import local_attention

K, P = 7, 3


def unfold(q, k, v, row, col, heads, outside):
    """The form found in public code: windows unfolded, positions added to every key."""
    B, C, H, W = q.shape
    split = (B, heads, C // heads, H, W)
    k, v = (F.pad(t, [P] * 4).unfold(2, K, 1).unfold(3, K, 1).reshape(*split, K, K) for t in (k, v))
    by_row, by_col = k.chunk(2, 2)
    by_row = by_row + row[0].t()[:, None, None, :, None]
    by_col = by_col + col[0].t()[:, None, None, None, :]
    k = torch.cat([by_row, by_col], 2).flatten(-2)
    logits = (q.reshape(*split, 1) * k).sum(2) + outside
    return torch.einsum("bhyxk,bhcyxk->bhcyx", logits.softmax(-1), v.flatten(-2)).reshape(
        B, C, H, W
    )


def beyond(H, W):
    """0 inside, very low outside: H W K*K."""
    inside = F.pad(torch.ones(H, W), [P] * 4).unfold(0, K, 1).unfold(1, K, 1).flatten(-2)
    return (inside - 1) * 1e30


def peak_mb(f):
    """How far the resident set grows over what it was, results included. Linux only."""

    def status(key):
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if key in x)
        return int(line.split()[1]) / 1024

    f()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what malloc has kept would hide what is taken
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    result = f()
    return status("VmHWM") - before, result


def main():
    torch.set_num_threads(1)
    reuse = "MALLOC_MMAP_MAX_" in os.environ
    print(native.where(), "| memory reused" if reuse else "")
    bars = {(4, 56, 64, 8): (120, 75), (4, 28, 128, 8): (0, 0), (4, 14, 256, 8): (80, 55)}
    bars |= {(1, 112, 64, 8): (0, 0)}
    if reuse:
        bars = {shape: (45, 32) if shape[1] == 14 else (0, 0) for shape in bars}
    for (B, side, dim, heads), (bar, bar_both) in bars.items():
        shape, d = (B, dim, side, side), dim // heads
        q, k, v, g = (torch.randn(shape) * 0.5 for _ in range(4))
        row, col = (torch.randn(1, K, d // 2) * 0.3 for _ in range(2))
        tensors, outside = (q, k, v, row, col), beyond(side, side)
        half = [t.bfloat16() for t in tensors]

        def ours(*t, heads=heads):
            return local_attention(*t, heads, K, "mask")

        def theirs(*t, heads=heads, outside=outside):
            return unfold(*t, heads, outside)

        assert torch.allclose(ours(*tensors), theirs(*tensors), atol=1e-5)
        f = interleaved(
            5,
            ours=lambda ours=ours, tensors=tensors: ours(*tensors),
            half=lambda ours=ours, half=half: ours(*half),
            unfold=lambda theirs=theirs, tensors=tensors: theirs(*tensors),
            gemm=gemm_gflops(),
            gemm_half=gemm_gflops(dtype=torch.bfloat16),
        )
        fb = interleaved(
            4,
            ours=training(ours, tensors, g),
            half=training(ours, half, g.bfloat16()),
            unfold=training(theirs, tensors, g),
        )
        one = 2 * q.numel() * K * K / 1e9  # GFLOP of one product
        gemm = 2 * 1024**3 / 1e9 / f["gemm"]
        share = 100 * 3 * one / f["ours"] / gemm
        ratio, ratio_both = f["unfold"] / f["ours"], fb["unfold"] / fb["ours"]
        print(
            f"({B}, {side}x{side}, {dim}, h{heads}, head width {d})\n"
            f"  forward       {f['ours'] * 1e3:7.2f} ms  {against(ratio, bar)}\n"
            f"  with backward {fb['ours'] * 1e3:7.2f} ms  {against(ratio_both, bar_both)}\n"
            f"  of GEMM ({gemm:.0f} GFLOP/s) {against(share, 50 if d >= 16 else 0, '%')} by the "
            f"equation's three products, {share * 2 / 3:.0f}% by the two done\n"
            f"  bf16 {against(f['half'] and f['ours'] / f['half'], 1.3)}, "
            f"with backward {against(fb['ours'] / fb['half'], 1.3)}; "
            f"the machine's GEMM {f['gemm'] / f['gemm_half']:.2f}x",
            flush=True,
        )
        one_thread = wall(15, lambda ours=ours, tensors=tensors: ours(*tensors))
        torch.set_num_threads(2)
        two_threads = wall(15, lambda ours=ours, tensors=tensors: ours(*tensors))
        torch.set_num_threads(1)
        print(f"  two threads   {against(one_thread / two_threads, 1.8)} (wall)")
        grown, gradients = peak_mb(training(ours, tensors, g))
        results = sum(t.numel() * t.element_size() for t in (*gradients, q)) / 2**20
        beyond_results = grown - results
        met = "" if beyond_results <= 1 else ", NOT met"
        print(
            f"  memory grew by {grown:.1f} MB, of which results {results:.1f} MB: "
            f"{max(beyond_results, 0):.1f} MB beyond (bar 1 MB{met})",
            flush=True,
        )


if __name__ == "__main__":
    main()
