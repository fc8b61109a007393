"""The moments of a map's 3x3 windows on CPU: thirteen sums over the map, and those of its borders.

The product of places a and b, summed over the pixels p, is that of pixels q = p + a and q + (b - a)
over all of the map, without those that p would see from outside of it: p is then one row above the
map (and a and b are both one row down), one below, or one column beside it. Pixels beyond a corner
are left out twice, so that the corner comes back once.
"""

from functools import cache

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import LIMITS, Moments, run
from saccade.ops.operator import Kernel

STEP = LIMITS["feed_hidden_step"]  # channels come in multiples of it
SUMS = LIMITS["moment_sums"]
PLACES = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]

# The sums of a channel, in the order of src/moments.h.
DIFFERENCES = [(i, j) for i in range(3) for j in range(-2, 3) if i or j >= 0]
EDGES = {"top": (0, 1), "bottom": (0, -1), "left": (1, 1), "right": (1, -1)}  # axis, side seen


@cache
def _places_of_sums() -> Tensor:
    """What each sum adds to each entry of the 10 x 10 moments: SUMS 100."""
    sums = 1 + len(DIFFERENCES)
    table = torch.zeros(SUMS, 10, 10, dtype=torch.float64)
    for a, p in enumerate(PLACES):
        table[0, a, 9] = 1
        for b, q in enumerate(PLACES):
            i, j = q[0] - p[0], q[1] - p[1]
            if (i, j) not in DIFFERENCES:
                i, j = -i, -j
            table[1 + DIFFERENCES.index((i, j)), a, b] = 1
        for edge, (axis, side) in enumerate(EDGES.values()):
            first = sums + 4 * edge
            if p[axis] != side:
                continue
            table[first, a, 9] = -1
            for b, q in enumerate(PLACES):
                if q[axis] == side:
                    table[first + 1 + abs(q[1 - axis] - p[1 - axis]), a, b] = -1
        if p[0] and p[1]:
            corner = sums + 16 + (p[0] < 0) * 2 + (p[1] < 0)
            table[corner, a, 9] = table[corner + 4, a, a] = 1
    table[:, 9, :9] = table[:, :9, 9]
    return table.flatten(1)


def _takes(h: Tensor) -> bool:
    return h.shape[3] % STEP == 0


def _call(h: Tensor) -> Moments:
    return Moments(torch.get_num_threads(), *h.shape, h.data_ptr())


def _forward(out: Tensor, residuals, h: Tensor) -> None:
    B, H, W, C = h.shape
    sums = out.new_zeros(SUMS, C)
    call = _call(h)
    call.sums = sums.data_ptr()
    run("saccade_moments_forward", call)
    torch.mm(sums.mT, _places_of_sums() / (B * H * W), out=out.view(C, 100))
    out[:, 9, 9] = 1


def _backward(grad: Tensor, residuals, wanted, h: Tensor) -> tuple[Tensor]:
    B, H, W, C = h.shape
    dsums = (_places_of_sums() / (B * H * W)) @ grad.view(C, 100).mT
    dsums, dh = dsums.to(h.dtype), torch.empty_like(h)
    call = _call(h)
    call.dsums, call.dh = dsums.data_ptr(), dh.data_ptr()
    run("saccade_moments_backward", call)
    return (dh,)


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"float32, channels in multiples of {STEP}",
    ready=native.available,
)
