"""Images to batches, the same ones however they are cut, resumed or parallelised.

Epoch n is a permutation of the set; step s takes positions [s batch, (s + 1) batch) of it; a
process takes its even slice of those, in parts that fit into memory. What chance does to an image
is a function of (seed, epoch, position) and of nothing else:

    epoch(n, start=k) is epoch(n) after k steps, bit for bit,
    with any number of workers, processes and parts.

A picture that cannot be read never stops a run: in whole batches another takes its place, else it
is left out; it is listed in `bad`, and only too many of them raise.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from saccade.data.augment import Mix
from saccade.data.reader import ORDER, Batch, Order, Readable, Reader, chance

__all__ = ["Batch", "Loader", "Readable"]


class Loader:
    """Steps of an epoch, each as this process's parts of it."""

    def __init__(
        self,
        images: Readable,
        transform: Callable[[Any, Any], tuple[Tensor, dict[str, Any]]],
        *,
        batch: int,
        part: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        shuffle: bool = True,
        repeats: int = 1,
        mix: Mix | None = None,
        whole: bool = True,
        limit: float = 0.05,
    ):
        _check(len(images), batch, part, world, repeats, mix is not None, whole)
        self.images, self.batch, self.seed, self.rank, self.world = images, batch, seed, rank, world
        self.part = batch if part is None else max(part // 2 * 2, min(part, 2))
        self.shuffle, self.whole, self.limit = shuffle, whole, limit
        self.repeats, self.distinct = repeats, -(-batch // repeats)
        self.bad: dict[str, str] = {}
        """Unreadable images met so far in this process, and why."""
        self.transform, self.mix = transform, mix
        self._read = Reader(images, transform, seed, mix, whole)
        self._orders = _Orders()
        self._workers = workers
        self._pool: DataLoader | None = None
        self._stream: Generator | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch)
        return whole + (rest > 0 and not self.whole)

    def epoch(self, n: int, start: int = 0) -> Iterator[list[Batch]]:
        """The steps of epoch n from step `start`."""
        if not 0 <= start <= len(self):
            raise ValueError(f"Loader: an epoch has {len(self)} steps, got {start=}")
        plan = self._plan(n, start)
        return self._steps([len(orders) for orders in plan], [o for step in plan for o in step])

    def close(self) -> None:
        """End the workers and the epoch at hand; a next one would start new workers."""
        if self._stream is not None:
            self._stream.close()
        self._pool = self._stream = None

    # -- what to read -----------------------------------------------------------------------

    def _plan(self, n: int, start: int) -> list[list[Order]]:
        count = len(self.images)
        order = chance(ORDER, self.seed, n).permutation(count) if self.shuffle else None
        return [self._step(n, s, order) for s in range(start, len(self))]

    def _step(self, n: int, s: int, order: Int64[np.ndarray, "N"] | None) -> list[Order]:
        first = s * self.batch
        size = self.batch if self.whole else min(self.batch, len(self.images) - first)
        low, high = (r * size // self.world for r in (self.rank, self.rank + 1))
        made = []
        for at in range(low, high, self.part):
            # Repeats lie a round apart, each round turned by one: neighbours differ, also in turn.
            rounds, inside = np.divmod(np.arange(at, min(at + self.part, high)), self.distinct)
            indices = s * self.distinct + (inside + rounds) % self.distinct
            made.append(Order(n, s, first + at, indices if order is None else order[indices]))
        return made

    # -- reading ----------------------------------------------------------------------------

    def _steps(self, counts: list[int], orders: list[Order]) -> Iterator[list[Batch]]:
        if self._stream is not None:
            self._stream.close()
        stream = self._parallel(orders) if self._workers else (self._read(o) for o in orders)
        self._stream = stream
        for count in counts:
            parts = []
            for _ in range(count):
                if stream is not self._stream:
                    raise RuntimeError("Loader: another epoch was begun; finish one at a time")
                batch, bad = next(stream)
                self._note(bad)
                if batch is not None:
                    parts.append(batch)
            yield parts

    def _note(self, bad: dict[str, str]) -> None:
        self.bad |= bad
        if bad and len(self.bad) > self.limit * len(self.images):
            first = "; ".join(f"{name} ({why})" for name, why in list(self.bad.items())[:3])
            raise ValueError(
                f"{len(self.bad)} of {len(self.images)} images cannot be read, more than the "
                f"{self.limit:.1%} that data.bad allows; repair or remove them: {first}, ..."
            )

    def _parallel(self, orders: list[Order]) -> Generator[tuple[Batch | None, dict[str, str]]]:
        if self._pool is None:
            self._pool = DataLoader(
                _Mapped(self._read),
                batch_size=None,
                sampler=self._orders,
                num_workers=self._workers,
                persistent_workers=True,
                pin_memory=torch.cuda.is_available(),
                worker_init_fn=_alone,
                generator=torch.Generator(),  # else the global one is drawn from
            )
        self._orders.orders = orders
        try:
            with _losses_are_told_later():
                read = iter(self._pool)
            yield from read
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            self._pool = self._stream = None
            raise RuntimeError(
                "Loader: a worker process was killed, most often because memory ran out; "
                "try a smaller loop.part, or data.workers=0"
            ) from error


def _check(
    count: int, batch: int, part: int | None, world: int, repeats: int, mixed: bool, whole: bool
) -> None:
    if batch < 1 or (part is not None and part < 1) or repeats < 1:
        raise ValueError(f"Loader: at least 1 each, got {batch=} {part=} {repeats=}")
    if not count:
        raise ValueError("Loader: the set has no images")
    if whole and count < batch:
        raise ValueError(
            f"Loader: a step takes {batch} images, the set has {count}; try loop.batch={count}"
        )
    if whole and batch % world:
        raise ValueError(f"Loader: processes must share a batch evenly, got {batch=} {world=}")
    if repeats > 1 and (not whole or batch < 2 * repeats):
        raise ValueError(
            f"Loader: repeats need whole batches of two images or more, got {batch=} {repeats=}"
        )
    if mixed and (not whole or part == 1 or (world > 1 and batch // world % 2)):
        raise ValueError(
            f"Loader: mixing pairs neighbours, so parts must be even, got {batch=} {part=} {world=}"
        )


# -- workers --------------------------------------------------------------------------------


class _Mapped(Dataset):
    def __init__(self, read: Reader):
        self.read = read

    def __getitem__(self, index: Order) -> tuple[Batch | None, dict[str, str]]:
        return self.read(index)


class _Orders(Sampler):
    """The orders of the epoch at hand; stays in this process, while the workers live on."""

    def __init__(self):
        self.orders: list[Order] = []

    def __iter__(self) -> Iterator[Order]:
        return iter(self.orders)

    def __len__(self) -> int:
        return len(self.orders)


def _alone(worker: int) -> None:
    """Signals to the group, such as Ctrl-C, are for the main process, which then ends us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # we lead a session already
        os.setsid()


@contextlib.contextmanager
def _losses_are_told_later() -> Generator[None]:
    """A DataLoader raises for a killed worker wherever the program stands; we tell it in `next`."""
    handler = signal.getsignal(signal.SIGCHLD)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, handler)
