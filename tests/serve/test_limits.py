"""The page's server against raw sockets: idle, slow, unfinished, too many, and its end."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from saccade import serve
from saccade.serve import limits

POST = b"POST /look HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n"


@pytest.fixture
def port(monkeypatch):
    """Where the page is served, with little patience and 3 MB for all uploads together."""
    monkeypatch.setattr(limits, "HEAD", 0.6)
    monkeypatch.setattr(limits, "BODY", 0.8)
    monkeypatch.setattr(limits, "CONNECTIONS", 8)
    monkeypatch.setattr("saccade.serve.application.TOGETHER", 3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = limits.config(serve.app(["none"], 1_000_000), "127.0.0.1", 0, 100_000)
        server = limits.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def connect(port, content=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(content)
    return connection


def answer(connection):
    """All that comes until the other side ends it."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def get(port):
    with connect(
        port, b"GET /models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    ) as c:
        return answer(c)


def test_what_does_not_arrive_is_not_waited_for(port, caplog):
    start = time.monotonic()
    idle, head = connect(port), connect(port, b"POST /look HTTP/1.1\r\nHost: loc")
    body = connect(port, POST % (1000, b"") + b"abc")
    assert answer(idle) == b""
    assert answer(head) == b""
    assert answer(body).startswith(b"HTTP/1.1 408")
    assert 0.4 < time.monotonic() - start < 5
    assert b"200 OK" in get(port)
    assert caplog.text == ""


def test_one_too_many_closes_the_oldest_idle_one(port):
    many = [connect(port) for _ in range(30)]
    assert b"200 OK" in get(port), "whoever asks at once is answered"
    assert answer(many[0]) == b""
    for connection in many:
        connection.close()


def test_uploads_share_a_budget(port):
    uploads = [connect(port, POST % (990_000, b"") + bytes(900_000)) for _ in range(3)]
    time.sleep(0.1)
    with connect(port, POST % (990_000, b"") + bytes(900_000)) as one_more:
        assert answer(one_more).startswith(b"HTTP/1.1 503")
    for connection in uploads:
        answer(connection)  # until their time is over
    with connect(port, POST % (4, b"Connection: close\r\n") + b"junk") as later:
        assert b"no picture" in answer(later), "what they held is free again"


def test_nobody_complains_about_a_disconnect(port, caplog):
    for content in (b"", b"POST /lo", POST % (1000, b"") + b"abc", POST % (4, b"") + b"junk"):
        connect(port, content).close()
    time.sleep(0.2)
    assert b"200 OK" in get(port)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"", b"415"),
        (b"Origin: http://localhost\r\n", b"415"),
        (b"Origin: http://localhost:1\r\n", b"403"),
        (b"Origin: http://evil.example\r\n", b"403"),
        (b"Origin: null\r\n", b"403"),
        (b"Sec-Fetch-Site: same-site\r\n", b"403"),
        (b"Sec-Fetch-Site: same-origin\r\n", b"415"),
    ],
)
def test_other_sites_may_not_send(port, header, code):
    with connect(port, POST % (4, header + b"Connection: close\r\n") + b"junk") as connection:
        assert answer(connection).startswith(b"HTTP/1.1 " + code)


def test_file_handles_bound_the_connections(monkeypatch):
    import resource

    for handles, most in ((resource.RLIM_INFINITY, 64), (1024, 64), (200, 40), (64, 4)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, handles=handles: (handles, handles))
        assert limits.allowed() == most


def test_the_same_line_is_logged_once():
    seldom = limits.Seldom()

    def record(line, error=None):
        trace = (type(error), error, None) if error else None
        return logging.LogRecord("asyncio", 40, "", 0, line, (), trace)

    full = record("accept\nfailed", OSError(24, "Too many open files"))
    assert seldom.filter(full)
    assert full.exc_info is None
    assert full.getMessage() == "accept failed ([Errno 24] Too many open files)"
    assert not seldom.filter(record("accept\nfailed", OSError(24, "Too many open files")))
    assert seldom.filter(record("another"))


def test_a_jpeg_of_very_many_scans_is_refused():
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", progressive=True)
    assert serve.open_upload(file.getvalue()).size == (8, 8)
    with pytest.raises(ValueError, match="scans, at most 100 are read"):
        serve.open_upload(file.getvalue() + b"\xff\xda" * 200)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_within_five_seconds(tmp_path, sent):
    """A process of its own, with unfinished requests of every kind."""
    run = subprocess.Popen(
        [sys.executable, "-m", "saccade", "serve", "linglo_nano", "--port", "0"],
        stdout=subprocess.PIPE, stderr=(tmp_path / "log").open("w"), text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        message = run.stdout.readline()
        port = int(message.split("localhost:")[1].split()[0])
        contents = (b"", b"POST /lo", POST % (1000, b"") + b"abc")
        unfinished = [connect(port, content) for content in contents * 5]
        assert b"200 OK" in get(port)
        start = time.monotonic()
        run.send_signal(sent)
        run.wait(30)
        assert time.monotonic() - start < 3, "five on a busy machine"
        assert (tmp_path / "log").read_text() == ""
        for connection in unfinished:
            connection.close()
    finally:
        run.kill()
