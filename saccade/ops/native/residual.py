"""Halves of a block for inference on CPU: y = x + layer(LayerNorm(x)), each one call of a kernel.

    key-only   y = x + ((n Wv^T + bv) * g) P^T + n Q^T + c      see src/key_only.h
    feed       y = x + W2 gelu(taps * (W1 n + b1) + shift) + b2   see src/feed.h

with n = LayerNorm(x). A call is prepared once: its structure gets its pointers, and what depends on
weights alone (P = U2 U1 and the like) is computed. Each call compares a checksum of the weights'
contents, so that a change of weights, however it was made, is never overlooked.

Layers keep their prepared calls. As operators of torch, in graphs, calls are prepared each time,
and the tensors that were derived from weights are kept as long as the weights exist.
"""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from saccade.ops import native
from saccade.ops.native.call import (
    LIMITS,
    Feed,
    KeyOnly,
    LayerNorm,
    fresh,
    half,
    pointer,
    recording,
    run,
)  # fmt: skip
from saccade.ops.native.linear import pays
from saccade.ops.operator import Kernel

LANES = LIMITS["feed_hidden_step"]
MOST = 1024  # pixels up to which it pays to keep matrices: reading weights takes most time there


class Memory:
    """The tensors last derived from weights, and the checksum of those weights."""

    def __init__(self) -> None:
        self.latest: tuple[Any, tuple[Tensor, ...]] = None, ()


class FromWeights:
    """Tensors derived from weights, computed anew when the weights' contents or `key` change.

    `call` is passed on to the function that computes them.
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        compute: Callable[[Any], tuple[Tensor, ...]],
        memory: Memory,
    ):
        weights = tuple(weights)
        count = len(weights)
        self.compute, self.memory = compute, memory
        self.weights = (
            (ctypes.c_void_p * count)(*(t.data_ptr() for t in weights)),
            (ctypes.c_int64 * count)(*map(extent, weights)),
            ctypes.c_int32(count),
        )
        self.checksum = native.library().saccade_checksum

    def __call__(self, call: Any, key: Any = None) -> tuple[Tensor, ...]:
        now = self.checksum(*self.weights), native.uses, half(), key
        known, value = self.memory.latest  # both at once: other threads may be here, too
        if now != known:
            value = self.compute(call)
            self.memory.latest = now, value
        if recording.recorder is not None:
            recording.recorder.depends(self.weights, value)
        return value


NUMBERS: dict[float, Tensor] = {}  # kernels read them by their addresses, so they are never freed


class Norm:
    """The numbers of a LayerNorm that kernels read."""

    def __init__(self, scale: Float[Tensor, "C"], offset: Float[Tensor, "C"], eps: float):
        if eps not in NUMBERS:
            NUMBERS[eps] = torch.tensor([eps], dtype=torch.float32)
        self.tensors = scale, offset, NUMBERS[eps]
        names = "scale", "offset", "eps"
        self.pointers = {n: t.data_ptr() for n, t in zip(names, self.tensors, strict=True)}


class NormOfMap:
    """LayerNorm of a map's pixels."""

    def __init__(self, norm: Norm):
        self.alive = norm
        self.call = LayerNorm(1, 0, norm.tensors[0].numel(), **norm.pointers)

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        call, out = copied(self.call), fresh(x, *x.shape)
        call.threads, call.rows = torch.get_num_threads(), x.numel() // x.shape[3]
        call.x, call.y = x.data_ptr(), out.data_ptr()
        run("saccade_layer_norm_forward", call)
        return out


class KeyOnlyResidual:
    """x + key_only(LayerNorm(x)); weights as `saccade.ops.linglo` names them."""

    def __init__(
        self, norm: Norm, wk, bk, wv, bv, ws, u1, b1, u2, b2, memory: Memory | None = None
    ):
        call = self.call = KeyOnly(1, 0, 1, wv.shape[0], len(ws), **norm.pointers)
        for name, t in {"wk": wk, "bk": bk, "wv": wv, "bv": bv}.items():
            setattr(call, name, t.data_ptr())

        def products(call: Any) -> tuple[Tensor, ...]:
            ask = ((ws @ wk) * (ws.shape[1] // len(ws)) ** -0.5).contiguous()
            p, q, c = u2 @ u1, u2 @ wk, torch.addmv(b2, u2, b1 + bk)
            call.p, call.q, call.c = map(pointer, (p, q, c))
            matrices = packed("key_only", call)
            call.p = call.q = call.c = None  # these tensors are freed here
            return ask, matrices

        self.alive = norm, wk, bk, wv, bv
        weights = wk, bk, wv, bv, ws, u1, b1, u2, b2
        self.derived = FromWeights(weights, products, memory or Memory())

    def __call__(self, x: Float[Tensor, "B H W C"], out: Tensor | None = None) -> Tensor:
        call, out = copied(self.call), fresh(x, *x.shape) if out is None else out
        B, H, W, C = x.shape
        call.half = half()
        alive = self.derived(call)
        call.ask, call.packed = map(pointer, alive)
        call.threads, call.B, call.tokens = torch.get_num_threads(), B, H * W
        call.collapsed = H * W + C < 3 * H * W  # multiplications of C x C
        call.x, call.y = x.data_ptr(), out.data_ptr()
        run("saccade_key_only_forward", call)
        return out


class FeedResidual:
    """x + feed_forward(LayerNorm(x)); `position` computes taps (J 1 3 3) and shift of `weights`."""

    def __init__(
        self, norm: Norm, w1, b1, w2, b2, tanh: bool, weights: Iterable[Tensor] = (),
        position: Callable[[], tuple[Tensor, Tensor]] | None = None, memory: Memory | None = None,
    ):  # fmt: skip
        call = self.call = Feed(1, 0, 0, 0, w1.shape[1], len(w1), len(w2), tanh, **norm.pointers)
        for name, t in {"w1": w1, "b1": b1, "w2": w2, "b2": b2}.items():
            setattr(call, name, t.data_ptr())

        def by_place(call: Any) -> tuple[Tensor, ...]:
            if position is None:
                return ()
            taps, shift = position()
            return taps.flatten(1).mT.contiguous(), shift.contiguous()

        self.alive = norm, w1, b1, w2, b2
        self.taps = FromWeights(weights, by_place, Memory())
        matrices = w1, b1, w2, b2
        self.matrices = FromWeights(
            matrices, lambda call: (packed("feed", call),), memory or Memory()
        )

    def __call__(self, x: Float[Tensor, "B H W C"], out: Tensor | None = None) -> Tensor:
        call, out = copied(self.call), fresh(x, *x.shape) if out is None else out
        B, H, W, _ = x.shape
        call.threads, call.half = torch.get_num_threads(), half()
        taps = self.taps(call)
        if taps:
            call.B, call.H, call.W = B, H, W
            call.taps, call.shift = map(pointer, taps)
        else:  # pixels do not depend on their neighbours: all of them as one column
            call.B, call.H, call.W = 1, B * H * W, 1
        if B * H * W <= MOST or call.half:
            matrices = self.matrices(call, key=(call.threads, B, H, W))
            call.packed = pointer(*matrices)
        call.x, call.y = x.data_ptr(), out.data_ptr()
        run("saccade_feed_forward", call)
        return out


def copied(call: Any) -> Any:
    """A structure of its own for every call: several threads may call one layer."""
    return type(call).from_buffer_copy(call)


def packed(name: str, call: ctypes.Structure) -> Tensor:
    """The matrices of a call, in the layout that its kernel reads."""
    library, address = native.library(), ctypes.byref(call)
    size = getattr(library, f"saccade_{name}_packed")(address, ctypes.sizeof(call))
    room = torch.empty(size // 4, dtype=torch.float32)
    getattr(library, f"saccade_{name}_pack")(address, ctypes.c_void_p(room.data_ptr()))
    return room


def serves(*tensors: Tensor) -> bool:
    """Whether the calls above work with these weights, on this machine."""
    return pays() and all(
        t.dtype == torch.float32 and t.is_contiguous() and not t.is_neg() for t in tensors
    )


def extent(t: Tensor) -> int:
    """The bytes from its first number to its last: fewer than by its shape, if it is expanded."""
    if not t.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def dense(t: Tensor) -> bool:
    """Whether its numbers fill one block of memory, whatever the order of its axes."""
    beside = t.is_contiguous() or t.is_contiguous(memory_format=torch.channels_last)
    return beside and not t.is_neg()


# -- as operators ---------------------------------------------------------------------------------

_MEMORIES = WeakIdKeyDictionary()


def _memory_of(weight: Tensor) -> Memory:
    return _MEMORIES.setdefault(weight, Memory())


def _key_only(out, residuals, x, scale, offset, wk, bk, wv, *rest) -> None:
    *letters, eps = wk, bk, wv, *rest
    KeyOnlyResidual(Norm(scale, offset, eps), *letters, memory=_memory_of(wv))(x, out)


def _feed(out, residuals, x, scale, offset, w1, b1, taps, shift, w2, b2, tanh, eps) -> None:
    norm, weights = Norm(scale, offset, eps), () if taps is None else (taps, shift)
    position = None if taps is None else lambda: (taps, shift)
    FeedResidual(norm, w1, b1, w2, b2, tanh, weights, position, _memory_of(w1))(x, out)


KEY_ONLY_NATIVE = Kernel(
    forward=_key_only,
    backward=None,
    takes=lambda *_: True,
    about="float32, without gradients",
    ready=pays,
)
FEED_NATIVE = Kernel(
    forward=_feed,
    backward=None,
    takes=lambda x, scale, offset, w1, *_: len(w1) % LANES == 0,
    about=f"float32, hidden channels in multiples of {LANES}, without gradients",
    ready=pays,
)
