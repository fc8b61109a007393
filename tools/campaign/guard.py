"""Watch what python does: no trial in this process may reach the network or start a program."""

import contextlib
import sys
from collections.abc import Generator

from tools.campaign.verdict import Finding

FORBIDDEN = (
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "pickle.find_class", "ctypes.dlopen", "urllib.Request", "ftplib.connect",
)  # fmt: skip
ALLOWED = ("uname", "/kernels")  # the name of the processor, and saccade's own kernels

_watching: list[list[str]] = []
_added = False


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event in FORBIDDEN:
        text = f"{event} {arguments!r}"[:300]
        if not any(word in text for word in ALLOWED):
            _watching[-1].append(text)


@contextlib.contextmanager
def guarded() -> Generator[None]:
    """Raise `Finding` at the end if something forbidden happened inside."""
    global _added
    if not _added:
        sys.addaudithook(_hook)  # hooks cannot be removed
        _added = True
    acts: list[str] = []
    _watching.append(acts)
    try:
        yield
    finally:
        _watching.pop()
        if acts:
            raise Finding("it reached out: " + "; ".join(acts))
