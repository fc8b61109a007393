"""`serve`: a local page that shows what models say and where they look."""

import errno
import ipaddress
import os
import socket
import sys
from typing import Annotated

from saccade.cli.command import Count, Value
from saccade.cli.console import note, say

Models = Annotated[list[str], Value("MODELS", "models")]


def serve(
    models: Models = [],  # noqa: B006  (never changed)
    *,
    model: Models = [],  # noqa: B006  (never changed)
    host: Annotated[str, Value("ADDRESS")] = "127.0.0.1",
    port: Count = 8000,
    upload: Annotated[int, Value("MB")] = 10,
    name: Annotated[str, Value("NAME")] = "",
) -> None:
    """Open a page on this machine: drop a picture, see classes and attention.

    Examples:
        saccade serve
        saccade serve runs/quick linglo_nano

    Args:
        models: runs, saved models or names, to compare; the newest run if left out, or else
            linglo_nano, qna_nano and sasa_nano, which know breeds of cats and dogs
        model: the same, as an option
        host: where it listens; with the usual address, this machine alone can reach it
        port: where it listens; 0 takes any that is free
        upload: megabytes that a picture may have
        name: a further name by which browsers reach the page, if a reverse proxy is in front
    """
    if not 1 <= upload <= 100:
        raise ValueError(f"serve: a picture may have 1 to 100 MB, got {upload}")
    if not 0 <= port <= 65535:
        raise ValueError(f"serve: ports are 0 to 65535, got {port}; try --port 8000")
    try:
        _serve(list(dict.fromkeys([*models, *model])), host, port, upload * 1_000_000, name)
    except KeyboardInterrupt:
        _leave()


def _serve(names: list[str], host: str, port: int, upload: int, name: str) -> None:
    from saccade import serve as served
    from saccade import weights
    from saccade.cli.learn import newest

    if not names:
        try:
            names = [str(newest("predict"))]
        except FileNotFoundError:
            names = ["linglo_nano", "qna_nano", "sasa_nano"]
            note("no trained run in runs/: showing the models that come with saccade")
    with _listener(host, port) as listener:
        address, port = listener.getsockname()[:2]
        titles = served.titles(names)
        loaded = [served.loaded(name, title) for name, title in zip(names, titles, strict=True)]
        others = [name for name in weights.NAMES if name not in titles]
        application = served.app([*loaded, *others], upload, address, name)
        from saccade.serve import limits

        say(f"open http://{_host_in_url(address)}:{port} (Ctrl-C ends it)")
        if not served.alone(address):
            note(
                "anybody who reaches this machine can use it; there is no password: "
                "put a reverse proxy in front (docs/page.md)"
            )
        config = limits.config(application, address, port, upload)
        limits.Server(config).run(sockets=[listener])


def _leave() -> None:
    """End at once: python would take seconds to take apart all that is imported."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _listener(host: str, port: int) -> socket.socket:
    """A socket that holds the port from now on; an early browser waits until models are loaded."""
    wrong = (
        f"serve: {host!r} is no address of this machine; "
        f"try --host 127.0.0.1 (this machine alone) or --host 0.0.0.0 (all who reach it)"
    )
    try:
        addresses = socket.getaddrinfo(host or "?", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(wrong) from error
    family, kind, protocol, _, address = min(addresses, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(wrong) from error
        other = port + 1 if 1024 <= port < 65535 else 8000
        raise OSError(
            f"serve: {host}:{port} cannot be listened on ({error.strerror}); try --port {other}"
        ) from error
    return listener


def _host_in_url(address: str) -> str:
    """An address as it is typed into a browser on this machine."""
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified or address == "127.0.0.1":
        return "localhost"
    return f"[{address}]" if ip.version == 6 else address
