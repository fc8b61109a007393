"""Worker processes that read images ahead of the training.

They stay alive between epochs and end silently; if one dies, a one-sentence error says so.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from saccade.data.reader import Order, Reader, Result


class Pool:
    """Reads orders in parallel, gives batches in sequence; without workers, in this process."""

    def __init__(self, read: Reader, workers: int):
        self.read, self.workers = read, workers
        self._orders = _Orders()
        self._loader: DataLoader | None = None

    def run(self, orders: list[Order]) -> Iterator[Result]:
        """The results one by one; a new run cancels one that was not read to its end."""
        if not self.workers:
            return map(self.read, orders)
        return self._run(orders)

    def close(self) -> None:
        """End the workers; the next run would start new ones."""
        reading = getattr(self._loader, "_iterator", None)
        if reading is not None:
            reading._shutdown_workers()  # left to the garbage collector this may take 5 s
        self._loader = None

    def _run(self, orders: list[Order]) -> Generator[Result]:
        if self._loader is None:
            self._loader = DataLoader(
                _ReadOrders(self.read),
                batch_size=None,
                sampler=self._orders,
                num_workers=self.workers,
                persistent_workers=True,
                pin_memory=torch.cuda.is_available(),
                worker_init_fn=_alone,
                generator=torch.Generator(),  # else the global one is drawn from
            )
        self._orders.orders = orders
        try:
            with _no_error_at_any_line():
                reading = iter(self._loader)
            yield from reading
        except Exception as error:
            self.close()
            if isinstance(error, RuntimeError) and "exited unexpectedly" in str(error):
                raise RuntimeError(
                    "Loader: a worker process was killed, most often because memory ran out; "
                    "try a smaller loop.part, or data.workers=0"
                ) from error
            raise


class _ReadOrders(Dataset):
    def __init__(self, read: Reader):
        self.read = read

    def __getitem__(self, index: Order) -> Result:
        return self.read(index)


class _Orders(Sampler):
    """The orders of the current run; they stay in this process, the workers do not see them."""

    def __init__(self):
        self.orders: list[Order] = []

    def __iter__(self) -> Iterator[Order]:
        return iter(self.orders)

    def __len__(self) -> int:
        return len(self.orders)


def _alone(worker: int) -> None:
    """Ignore signals to the whole group, such as Ctrl-C: the main process ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # we lead a session already
        os.setsid()
    sys.excepthook = _ignore_lost_main_process


def _ignore_lost_main_process(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Ignore that the main process ended while a batch was handed over: it reports that itself."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


@contextlib.contextmanager
def _no_error_at_any_line() -> Generator[None]:
    """Keep DataLoader from raising for a killed worker at any line: `next` raises for it."""
    handler = signal.getsignal(signal.SIGCHLD)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, handler)
