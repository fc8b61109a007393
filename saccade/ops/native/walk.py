"""A sequence of kernel calls, recorded once and repeated by one call of the library.

    recorder = Recorder()
    with recorder:                     every kernel call of this thread is made, and recorded
        maps = compute(x)
    walk = Walk(recorder, x, maps)     the same calls, between two addresses that change: x and maps
    walk(x)

The maps between x and the result lie in memory that belongs to the walk, and that it reuses as soon
as no later call reads it: new memory costs a page fault every 4 kB, up to a fifth of a model's
time. Python code between the calls is not recorded, so it must do no work of its own but pass
tensors on; whoever makes a walk therefore compares its result with the model's. No call may use
memory that is freed later: the recorder checks every address (`whole`).

A walk is valid as long as the contents of the weights do not change (`current`).
"""

import ctypes
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.ops import native
from saccade.ops.native.call import recording
from saccade.ops.native.residual import extent


class Recorder:
    """Records the kernel calls of a thread, and provides the memory of the maps between them."""

    def __init__(self, half: bool = False, stays: Iterable[Tensor] = ()):
        """`stays`: the image and the weights, whose memory is not freed."""
        self.half = half  # products of bfloat16
        self.whole = True  # whether no call used other memory
        self.places = [*map(_place, stays)]
        self.calls: list[tuple[str, ctypes.Structure]] = []
        self.memory: list[Tensor] = []
        self.weights: dict[int, int] = {}  # address: bytes
        self.alive: list[Any] = []

    def __enter__(self) -> "Recorder":
        self.before, recording.recorder = recording.recorder, self
        return self

    def __exit__(self, *error: object) -> None:
        recording.recorder = self.before

    def note(self, name: str, call: ctypes.Structure) -> None:
        self.calls.append((name, type(call).from_buffer_copy(call)))
        addresses = [field.value for field in _addresses(call) if field.value]
        self.whole = self.whole and all(map(self._stays, addresses))

    def _stays(self, address: int) -> bool:
        return any(begin <= address < end for begin, end in self.places)

    def depends(self, weights: tuple[Any, Any, Any], value: tuple[Tensor, ...]) -> None:
        """A call reads `value`, derived from weights (their addresses, sizes and number)."""
        addresses, sizes, count = weights
        self.weights.update(zip(addresses[: count.value], sizes[: count.value], strict=True))
        self.alive.append(value)
        self.places += map(_place, value)

    def room(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Memory of the walk that no tensor uses now, whatever its shape was before."""
        count = 1
        for side in shape:
            count *= side
        free = [t for t in self.memory if t.numel() >= count and _holders(t) == _ALONE]
        if free:
            whole = min(free, key=Tensor.numel)
        else:
            whole = like.new_empty(count)
            self.memory.append(whole)
            self.places.append(_place(whole))
        return whole[:count].view(*shape)


def _place(t: Tensor) -> tuple[int, int]:
    """The addresses where it begins and ends."""
    return t.data_ptr(), t.data_ptr() + extent(t)


def _holders(t: Tensor) -> int:
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)


_ALONE = _holders(torch.empty(1))


class Walk:
    """The calls that `recorder` noted while `maps` were computed from x."""

    def __init__(self, recorder: Recorder, x: Tensor, maps: Sequence[Tensor]):
        if not recorder.whole:
            raise ValueError("a call uses memory that will be freed")
        library = native.library()
        self.alive = recorder
        self.calls = [call for _, call in recorder.calls]
        steps = []
        for name, call in recorder.calls:
            function = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            steps += [function or 0, ctypes.addressof(call), ctypes.sizeof(call)]
        self.steps = (ctypes.c_int64 * len(steps))(*steps)
        self.count = len(recorder.calls)
        self.run, self.checksum = library.saccade_walk, library.saccade_checksum
        self._depend(recorder.weights)
        fields = [field for call in self.calls for field in _addresses(call)]
        self.inputs = _within(fields, x)
        self.outputs = []
        places = {t.data_ptr(): t for t in recorder.memory}
        for y in maps:
            whole = places.get(y.data_ptr())
            if whole is None:
                raise ValueError("a map was not written by a kernel")
            self.outputs.append((_within(fields, whole), whole.numel(), y.shape, y.stride()))
        self.fits = bool(self.inputs) and len({y.data_ptr() for y in maps}) == len(maps)
        self.busy = threading.Lock()

    def _depend(self, weights: dict[int, int]) -> None:
        count = len(weights)
        self.weights = (
            (ctypes.c_void_p * count)(*weights),
            (ctypes.c_int64 * count)(*weights.values()),
            ctypes.c_int32(count),
        )
        self.contents = self.checksum(*self.weights)

    def watch_contents(self, tensors: Iterable[Tensor]) -> None:
        """The walk's weights are copies: it is valid as long as these originals do not change."""
        self._depend({t.data_ptr(): extent(t) for t in tensors})

    def current(self) -> bool:
        """Whether the weights have the contents that they had when the walk was made."""
        return self.checksum(*self.weights) == self.contents

    def __call__(self, x: Tensor) -> list[Tensor] | None:
        """The maps; None while another thread uses the walk, or if there is no memory."""
        if not self.busy.acquire(blocking=False):
            return None
        try:
            begin = x.data_ptr()
            for field, offset in self.inputs:
                field.value = begin + offset
            maps = []
            for ends, count, shape, stride in self.outputs:
                whole = torch.empty(count, dtype=torch.float32)
                begin = whole.data_ptr()
                for field, offset in ends:
                    field.value = begin + offset
                maps.append(whole.as_strided(shape, stride))
            return None if self.run(self.steps, self.count) else maps
        finally:
            self.busy.release()


def _within(fields: list[Any], whole: Tensor) -> list[tuple[Any, int]]:
    """The fields that point into a dense tensor, with their distances from its beginning."""
    begin, size = whole.data_ptr(), whole.numel() * whole.element_size()
    inside = [(field, (field.value or 0) - begin) for field in fields]
    return [(field, offset) for field, offset in inside if 0 <= offset < size]


def _addresses(call: ctypes.Structure) -> Iterator[Any]:
    """All address fields of a call, as objects to read and write them by."""
    for name, kind, *_ in call._fields_:
        if kind is ctypes.c_void_p:
            yield ctypes.c_void_p.from_buffer(call, getattr(type(call), name).offset)
        elif issubclass(kind, ctypes.Structure):
            yield from _addresses(getattr(call, name))
