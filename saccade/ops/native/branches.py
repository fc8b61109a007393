"""A feed-forward with normalised branches on CPU, which computes no branch by itself.

    h = x W1 + b1                            kept for the backward
    sums over h                              of products of neighbours, and along the borders
    taps, shift                              all branches and the skip as one 3x3, by those sums
    y = gelu(h * taps + shift) W2 + b2       the fused kernel of `native/feed.py`, from h on

The backward goes from the last line to the first: the fused kernel gives dh as if taps were
constant, dtaps is passed on to the branches and to the sums, and the gradient through the sums adds
to dh a 5x5 convolution of h, one for each channel.
"""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import LIMITS, Branches, Feed, Moments, run
from saccade.ops.native.linear import Product
from saccade.ops.operator import Kernel

LANES, SUMS = LIMITS["feed_hidden_step"], LIMITS["moment_sums"]
FEWEST = 32  # pixels; with fewer, laying out the matrices costs more than the kernel saves
PIXELS = 1024  # that are computed at a time, so that each pass finds its input in the cache


def _takes(x, w1, b1, k, *rest) -> bool:
    B, H, W, _ = x.shape
    return len(w1) % LANES == 0 and B * H * W >= FEWEST


def _keeps(out, x, w1, b1, k, *rest) -> tuple[Tensor, ...]:
    """Room for h, for the sums over it, and for mean and variance of every branch."""
    J = len(w1)
    sums = x.new_empty(SUMS, J, dtype=torch.float64)
    return x.new_empty(*x.shape[:3], J), sums, x.new_empty(2, len(k), J)


def _forward(out, residuals, x, w1, b1, k, gamma, beta, w2, b2, eps, skip, tanh) -> None:
    h, sums, statistics = residuals or _keeps(out, x, w1, b1, k)
    J, C = w1.shape
    sums.zero_()
    widen = Product(x.view(-1, C), h.view(-1, J), w1, b1)
    for pixel, pixels, moments in _turns(h):
        widen(pixel, pixels)
        moments.sums = sums.data_ptr()
        run("saccade_moments_forward", moments)
    one = _Branches(h, sums, k, gamma, beta, eps, skip, statistics)
    feed = _feed(h, one, w2, b2, tanh)
    feed.y = out.data_ptr()
    run("saccade_feed_forward", feed)


def _backward(grad, residuals, needs, x, w1, b1, k, gamma, beta, w2, b2, eps, skip, tanh):
    h, sums, statistics = residuals
    J, C = w1.shape
    dx, dh = torch.empty_like(x), _scratch_like(h)
    dw1, db1, dw2, db2 = (torch.zeros_like(t) for t in (w1, b1, w2, b2))
    dtaps, dshift = h.new_zeros(9, J), h.new_zeros(J)
    one = _Branches(h, sums, k, gamma, beta, eps, skip, statistics)
    feed = _feed(h, one, w2, b2, tanh)
    feed.h, feed.g, feed.dx = h.data_ptr(), grad.data_ptr(), dh.data_ptr()
    feed.dtaps, feed.dshift = dtaps.data_ptr(), dshift.data_ptr()
    feed.dw2, feed.db2 = dw2.data_ptr(), db2.data_ptr()
    run("saccade_feed_backward", feed)
    dk, dgamma, dbeta, dsums = one.backward(dtaps, dshift)
    into_x = Product(dh.view(-1, J), dx.view(-1, C), w1.mT, None)
    into_w1 = Product(x.view(-1, C), dh.view(-1, J), dw1, db1, gradients=True)
    for pixel, pixels, moments in _turns(h):
        moments.dsums, moments.dh = dsums.data_ptr(), dh.data_ptr() + 4 * J * pixel
        run("saccade_moments_backward", moments)
        into_x(pixel, pixels)
        into_w1(pixel, pixels)
    return dx, dw1, db1, dk, dgamma, dbeta, dw2, db2


_scratch = threading.local()


def _scratch_like(h: Tensor) -> Tensor:
    """A map like h, in memory that the next backward of this thread uses again.

    Memory that is freed and allocated anew costs a page fault every 4 kB: a tenth of a step.
    """
    memory = getattr(_scratch, "memory", None)
    if memory is None or memory.numel() < h.numel():
        memory = _scratch.memory = h.new_empty(h.numel())
    return memory[: h.numel()].view(h.shape)


def _turns(h: Tensor) -> Iterator[tuple[int, int, Any]]:
    """For some images at a time: their first pixel, their number of pixels, and the call."""
    B, H, W, J = h.shape
    images = min(B, -(-PIXELS // (H * W)))
    for first in range(0, B, images):
        count, pixel = min(images, B - first), first * H * W
        at = h.data_ptr() + 4 * J * pixel
        yield pixel, count * H * W, Moments(torch.get_num_threads(), count, H, W, J, at)


def _feed(h: Tensor, one: "_Branches", w2: Tensor, b2: Tensor, tanh: bool) -> Any:
    """The structure for C++: a feed-forward from h on."""
    B, H, W, J = h.shape
    feed = Feed(torch.get_num_threads(), B, H, W, J, J, len(w2), tanh, h.data_ptr())
    feed.taps, feed.shift = one.taps.data_ptr(), one.shift.data_ptr()
    feed.w2, feed.b2 = w2.data_ptr(), b2.data_ptr()
    return feed


class _Branches:
    """All branches as one 3x3, for a map with these sums; owns the memory that C++ reads."""

    def __init__(self, h, sums, k, gamma, beta, eps, skip, statistics):
        n, J = gamma.shape
        self.k = k.flatten(2).mT.contiguous()  # n 9 J
        self.taps, self.shift, self.eps = h.new_empty(9, J), h.new_empty(J), h.new_tensor([eps])
        tensors = sums, self.k, gamma, beta, self.eps, self.taps, self.shift, *statistics
        pointers = (t.data_ptr() for t in tensors)
        self.call = Branches(J, n, h.numel() // J, skip, *pointers)
        run("saccade_branches_forward", self.call)

    def backward(self, dtaps: Tensor, dshift: Tensor) -> tuple[Tensor, ...]:
        """The gradients of kernels, scales, shifts and sums."""
        n, _, J = self.k.shape
        dk, dgamma, dbeta = torch.empty_like(self.k), dtaps.new_empty(n, J), dtaps.new_empty(n, J)
        dsums = dtaps.new_empty(SUMS, J)
        call = self.call
        call.dtaps, call.dshift, call.dk, call.dgamma, call.dbeta, call.dsums = (
            t.data_ptr() for t in (dtaps, dshift, dk, dgamma, dbeta, dsums)
        )
        run("saccade_branches_backward", call)
        return dk.mT.reshape(n, J, 1, 3, 3), dgamma, dbeta, dsums


NATIVE = Kernel(
    forward=_forward,
    backward=_backward,
    takes=_takes,
    about=f"float32, hidden channels in multiples of {LANES}, at least {FEWEST} pixels",
    ready=native.available,
    keeps=_keeps,
)
