"""`serve`: a local page that shows what models say and where they look."""

import socket

from saccade.cli.console import console


def serve(
    model: list[str] = [],  # noqa: B006  (never changed)
    host: str = "127.0.0.1",
    port: int = 8000,
    upload: int = 10,
) -> None:
    """Open a page on this machine: drop a picture, see classes and attention.

    Args:
        model: runs, saved models or names, to compare; the newest run if not given, or else the
            small ones that come with saccade and know cats and dogs
        host: who may reach it; this machine alone if not given
        port: where it listens
        upload: megabytes that a picture may have
    """
    from saccade import serve as served
    from saccade.cli.learn import newest

    if not 1 <= upload <= 100:
        raise ValueError(f"serve: a picture may have 1 to 100 MB, got {upload}")
    names = list(model)
    if not names:
        try:
            names = [str(newest("predict"))]
        except FileNotFoundError:
            names = ["linglo_nano", "qna_nano", "sasa_nano"]
            _say("no trained run in runs/: showing the models that come with saccade")
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise OSError(
                f"serve: {host}:{port} cannot be listened on ({error.strerror}); "
                f"try --port {port + 1}"
            ) from error
    application = served.app([served.loaded(name) for name in names], upload * 1_000_000, host)
    import uvicorn

    _say(f"open http://{'localhost' if host in served.LOOPBACK else host}:{port} (Ctrl-C ends it)")
    if host not in served.LOOPBACK:
        _say("anybody who reaches this machine can use it; there is no password")
    uvicorn.run(application, host=host, port=port, log_level="warning")


def _say(sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
