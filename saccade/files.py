"""Files that are whole or not there: written beside, fsynced, then renamed into place.

    with replacing(path) as file:      an older file stays until the new one is on the disk
        file.write(content)

The error about a full disk names the disk and the way to go on. Nothing is ever written through a
symbolic link.
"""

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

MAKE_ROOM = "make room, then try again"
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # not on every system
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # for somebody to read a pipe
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | NO_LINKS
NO_ROOM = "No space left on device"
LONGEST = 200  # letters of a name that are shown
BLOCK = 4096  # bytes that the smallest file takes
WHOLE = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}  # file systems without fsync


@contextlib.contextmanager
def replacing(path: str | Path, cure: str = MAKE_ROOM) -> Generator[IO[bytes]]:
    """A file to write; it takes the path's name at the end, and is removed after an error.

    Args:
        path: what it should be called; an older file of that name is replaced
        cure: what to do where it cannot be written
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        remove(part)  # a leftover, or a link that points elsewhere
        with open(os.open(part, NEW, 0o666), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync(path.parent)  # the rename itself
    except BaseException as error:
        with contextlib.suppress(OSError):
            remove(part)
        if isinstance(error, OSError):
            raise unwritten(path, error, cure) from error
        raise


def write(path: str | Path, content: bytes | str, cure: str = MAKE_ROOM) -> Path:
    """Write a whole file; gives its path."""
    with replacing(path, cure) as file:
        file.write(
            content.encode(errors="surrogateescape") if isinstance(content, str) else content
        )
    return Path(path)


def write_json(path: str | Path, value: Any, cure: str = MAKE_ROOM) -> Path:
    """Write a value as JSON; one that JSON cannot hold leaves an older file as it is."""
    return write(path, json.dumps(value, indent=1), cure)


def append(path: Path, text: str, cure: str = MAKE_ROOM) -> None:
    """Add to the end of a file; `sync` brings it to the disk."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINKS | NO_WAITING
        with open(os.open(path, flags, 0o666), "ab") as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.ENXIO, "")
            file.write(text.encode())
    except OSError as error:
        raise unwritten(path, error, cure) from error


def sync(path: Path) -> None:
    """Bring a file or a folder's list of names to the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # a system that opens no folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in WHOLE or not path.is_dir():
            raise
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link (not what it points to)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def inside(path: Path, folder: Path) -> bool:
    """Whether a path, with all links followed, lies in a folder."""
    return path.resolve().is_relative_to(folder.resolve())


@contextlib.contextmanager
def writing(path: str | Path, cure: str = MAKE_ROOM) -> Generator[None]:
    """For functions of other packages that write a file: turn a full disk into the error used here.

    Args:
        path: the file that they write; some raise errors that do not name it
        cure: what to do where it cannot be written
    """
    path = Path(path)
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (NO_ROOM in str(error) or _is_full(path)):
            number = errno.ENOSPC
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not _is_told(error):
            raise unwritten(path, OSError(number, ""), cure) from error
        raise


def in_a_sentence(error: OSError) -> OSError:
    """The sentence about an error of the system, such as "[Errno 36] ..."; others as they are."""
    if error.errno is None or error.strerror is None or _is_told(error):
        return error
    name, full = error.filename2 or error.filename, error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full and isinstance(name, str | bytes):
        return unwritten(Path(os.fsdecode(name)), error, MAKE_ROOM)
    if full:
        return OSError(f"the disk that the output goes to is full; {MAKE_ROOM}")
    if not isinstance(name, str | bytes):
        return OSError(f"the system refuses: {error.strerror}; try again, or another way")
    text = os.fsdecode(name)
    path = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return OSError(f"{path!r} cannot be used: {error.strerror}; check the name and your rights")


def _is_told(error: BaseException) -> bool:
    return isinstance(error, OSError) and len(error.args) == 1


def _is_full(path: Path) -> bool:
    """Whether the disk of a path has no room at all."""
    try:
        return shutil.disk_usage(path.parent).free < BLOCK
    except OSError:
        return False


def unwritten(path: Path, error: OSError, cure: str) -> OSError:
    """Why a file could not be written, with the disk that is full and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "is full" if error.errno == errno.ENOSPC else "leaves you no more room (quota)"
        why = f"the disk at {str(_mount(path))!r} {what}"
    elif error.errno == errno.EFBIG:
        why = "it would be larger than files may be here (ulimit -f)"
    elif error.errno == errno.ELOOP:
        why, cure = "it is a symbolic link", f"remove the link, then {cure.rpartition('then ')[2]}"
    elif error.errno in (errno.ENXIO, errno.EISDIR):
        why = "it is no ordinary file"
        cure = f"remove it, then {cure.rpartition('then ')[2]}"
    elif error.errno == errno.ENOENT and not path.parent.exists():
        why = "its folder is gone"
        cure = "whoever moved or removed it may put it back, or begin again"
    else:
        why = error.strerror or str(error)
    sentence = OSError(f"could not write {str(path)!r}: {why}; {cure}")
    sentence.errno = error.errno
    return sentence


def _mount(path: Path) -> Path:
    """The folder where the disk of a path begins."""
    here = path.absolute()
    while not os.path.ismount(here) and here != here.parent:
        here = here.parent
    return here
