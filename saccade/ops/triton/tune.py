"""How large a tile a program owns, and how many warps share it.

A program holds tiles of BLOCK pixels x D channels in registers: the forward two that last (q and
the sum) and two that pass by (k and v), the backward up to four that last. What decides the speed
is how many numbers of a tile each thread holds:

    many    neighbouring pixels share what one thread has read, and a sum over channels takes fewer
            exchanges between threads; but six tiles of 32 numbers fill its 255 registers and spill;
    few     many warps in flight, which hide the latency of reading neighbours from L1: all that a
            window operator does all the time.

So a tile has a fixed size, TILE numbers, and only the warps are tuned: four of them hold 8 numbers
a thread, two 16. One would spill, eight would leave threads with half a vector load. The fixed size
also fixes the shape of the partial sums that the backward writes. No kernel multiplies matrices:
there are no pipeline stages to tune.

The choice depends on the compiled variant (head width, window, layout, dtypes) and not on the size
of the map: a detector that sees a new size every step must not tune every step.
"""

from collections.abc import Callable

import torch
import triton
from triton import knobs

# Warps, and a bound on registers; the first is taken where nothing is measured. Left alone, the
# assembler likes to spill a little for the sake of more blocks at once (tools/gpu.py shows it, with
# heads of 8 in bfloat16); the bound of all there are tells it not to.
CHOICES = ((4, 255), (2, 255))


def tuned(*key: str) -> Callable:
    """Let Triton time the numbers of warps, once for every variant that `key` tells apart.

    A different number of warps sums channels in a different order. Where PyTorch is asked for
    deterministic algorithms the first choice is taken unmeasured, the same in every process.
    """

    def first(configs: list, _: dict, **__: object) -> list:
        unmeasured = torch.are_deterministic_algorithms_enabled() or knobs.runtime.interpret
        return configs[:1] if unmeasured else configs

    # Every sum here is meant to be fused multiply-adds, whatever Triton's default.
    fused = {"enable_fp_fusion": True}
    return triton.autotune(
        [triton.Config(fused, warps, num_stages=1, maxnreg=most) for warps, most in CHOICES],
        key=list(key),
        prune_configs_by={"early_config_prune": first},
    )
