"""One process (or one job of several) at a time trains in a run's folder.

The first process of a job holds a lock (flock) on `.lock` in the folder; the system releases it
when that process ends, however it ends. On a file system without locks there is none.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Generator
from pathlib import Path

from saccade import files

NAME = ".lock"
_HELD: set[int] = set()


class LockedError(ValueError):
    """Another process trains in the folder."""


def _close_in_child() -> None:
    """A forked process, such as one that reads images, would hold the lock beyond our end."""
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def hold(folder: str | Path) -> Generator[None]:
    """Hold a run's folder, which is made if it is not there; refused if another process does."""
    folder = Path(folder)
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | files.NO_LINKS, 0o666)
    except OSError as error:
        raise files.unwritten(path, error, files.MAKE_ROOM) from error
    _HELD.add(handle)
    try:
        _lock(handle, folder)
        yield
    finally:
        if handle in _HELD:  # not in a forked process, which has closed it
            _HELD.discard(handle)
            _unlock(handle)
            os.close(handle)


def _unlock(handle: int) -> None:
    """Release the lock, also for a child that was forked at this moment."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # a system without locks
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isprintable() and holder else "another process"
        raise LockedError(
            f"{str(folder)!r} is in use: {who} trains there; wait until it has ended or stop it, "
            f"or name another folder with --out"
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    with contextlib.suppress(OSError):  # a full disk; the lock itself is held
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
