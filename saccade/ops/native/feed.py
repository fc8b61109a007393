"""The feed-forward half of a block on CPU by the fused kernel.

    h = x W1 + b1      u = h * taps + shift      y = gelu(u) W2 + b2

Neither u nor gelu(u) is ever held as a whole map. h is, but only if gradients will be needed: the
backward reads nothing else. It computes dh for a part of the map at a time.
"""

from typing import Any

import torch
from torch import Tensor

from saccade.ops.native.call import LIMITS, Feed, pointer, run
from saccade.ops.native.linear import pays
from saccade.ops.operator import Kernel

LANES = LIMITS["feed_hidden_step"]  # hidden channels come in multiples of it
FEWEST = 32  # pixels; with fewer, laying out two matrices costs more than the kernel saves


def _takes(x, w1, b1, taps, shift, w2, b2, tanh) -> bool:
    B, H, W, _ = x.shape
    return len(w1) % LANES == 0 and (taps is None) == (shift is None) and B * H * W >= FEWEST


def _keeps(out, x, w1, *rest) -> tuple[Tensor]:
    """Room for h."""
    return (x.new_empty(*x.shape[:3], len(w1)),)


def _forward(out, residuals, x, w1, b1, taps, shift, w2, b2, tanh) -> None:
    call, _alive = _call(x, w1, b1, taps, shift, w2, b2, tanh)
    call.y, call.h = out.data_ptr(), pointer(residuals[0] if residuals else None)
    run("saccade_feed_forward", call)


def _backward(grad, residuals, needs, x, w1, b1, taps, shift, w2, b2, tanh):
    dx, (h,) = torch.empty_like(x), residuals
    dw1, db1, dw2, db2 = (torch.zeros_like(t) for t in (w1, b1, w2, b2))
    dshift = None if shift is None else torch.zeros_like(shift)
    places = None if taps is None else x.new_zeros(9, len(w1))
    call, _alive = _call(x, w1, b1, taps, shift, w2, b2, tanh)
    call.h, call.g = h.data_ptr(), grad.data_ptr()
    call.dx, call.dw1, call.db1, call.dtaps, call.dshift, call.dw2, call.db2 = map(
        pointer, (dx, dw1, db1, places, dshift, dw2, db2)
    )
    run("saccade_feed_backward", call)
    dtaps = None if taps is None else places.mT.reshape(taps.shape)
    return dx, dw1, db1, dtaps, dshift, dw2, db2


def _call(x, w1, b1, taps, shift, w2, b2, tanh) -> tuple[Any, Tensor | None]:
    """The structure for C++, and the taps place by place, which must outlive the call."""
    B, H, W, C = x.shape
    if taps is None:  # pixels do not depend on their neighbours: all of them as one column
        B, H, W = 1, B * H * W, 1
    else:
        taps = taps.flatten(1).mT.contiguous()
    sizes = B, H, W, C, len(w1), len(w2), tanh
    tensors = {"x": x, "w1": w1, "b1": b1, "taps": taps, "shift": shift, "w2": w2, "b2": b2}
    pointers = {name: pointer(t) for name, t in tensors.items()}
    return Feed(torch.get_num_threads(), *sizes, **pointers), taps


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"float32, hidden channels in multiples of {LANES}, at least {FEWEST} pixels",
    ready=pays,
    keeps=_keeps,
)
