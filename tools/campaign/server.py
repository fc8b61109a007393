"""The page's server: slow, broken, foreign, too large and too many requests; it always answers."""

import contextlib
import io
import logging
import random
import socket
import threading
import time
from pathlib import Path

from PIL import Image

from saccade import serve
from saccade.serve import application, limits
from tools.campaign.odd import changed_bytes
from tools.campaign.patience import own, waited
from tools.campaign.verdict import Finding, Outcome

UPLOAD = 200_000
PATHS = ("/look", "/models", "/", "/look?model=0&y=.5&x=.5", "/look?model=99", "/look?y=nan",
         "/look?model=" + "9" * 500, "/look?x=1e999&y=-1", "/../../etc/passwd", "/%00", "/docs",
         "/openapi.json", "//evil.example/", "/look?classes=%ff")  # fmt: skip
HEADERS = (
    b"", b"Origin: http://evil.example\r\n", b"Origin: null\r\n", b"Sec-Fetch-Site: cross-site\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n",
    b"Content-Type: multipart/form-data; boundary=x\r\n", b"X: " + b"a" * 90_000 + b"\r\n",
    b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"\x00: \xff\r\n",
    b"Range: bytes=0-\r\n", b"Content-Encoding: gzip\r\n",
)  # fmt: skip
STILL, MOST = 15, 20  # seconds without a sign of life, and of the CPU, for one answer
FOREIGN = (b"evil.example", b"Origin: null", b"cross-site")


class Lines(logging.Handler):
    """What the server logs."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Requests:
    """A server with little patience in a thread, and raw sockets."""

    def __init__(self, place: Path):
        self.kept = limits.HEAD, limits.BODY, limits.CONNECTIONS, application.TOGETHER
        limits.HEAD, limits.BODY, limits.CONNECTIONS, application.TOGETHER = 0.3, 0.4, 8, 3
        self.log = Lines()
        logging.getLogger().addHandler(self.log)
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        config = limits.config(serve.app(["linglo_nano"], UPLOAD), "127.0.0.1", 0, 50_000)
        self.server = limits.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()
        file = io.BytesIO()
        Image.effect_noise((48, 40), 60).convert("RGB").save(file, "JPEG")
        self.picture = file.getvalue()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        self.listener.close()
        logging.getLogger().removeHandler(self.log)
        limits.HEAD, limits.BODY, limits.CONNECTIONS, application.TOGETHER = self.kept
        if self.thread.is_alive():
            raise Finding("the server does not end")

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        request, foreign, whole = self.drawn(chance)
        shape = chance.choices(("whole", "cut", "slow", "many", "leave"), (60, 15, 5, 5, 15))[0]
        if shape == "leave":
            self.connect(request[: chance.randrange(len(request) + 1)]).close()
            answer = b""
        elif shape == "many":
            sockets = [self.connect(request[: chance.randrange(60)]) for _ in range(20)]
            answer = b""
            for one in sockets:
                one.close()
        else:
            answer = self.sent(request, shape, chance)
        what = f"{shape} {request[:200]!r}: {answer[:60]!r}"
        if answer and not answer.startswith(b"HTTP/1.1 "):
            raise Finding(f"{what}: no answer of HTTP")
        status = int(answer[9:12]) if answer else 0
        if status >= 500 and status != 503:
            raise Finding(f"{what}: status {status}")
        if foreign and whole and shape == "whole" and 200 <= status < 300:
            raise Finding(f"{what}: a foreign site may send")
        if b"Traceback" in answer or b"root:" in answer:
            raise Finding(f"{what}: it tells too much\n{answer!r}")
        self.alive(what)
        return Outcome(not 200 <= status < 300, what)

    def drawn(self, chance: random.Random) -> tuple[bytes, bool, bool]:
        """A request, whether it comes from another site, and whether it is well formed."""
        method = chance.choice((b"POST", b"POST", b"POST", b"GET", b"PUT", b"HEAD", b"OPTIONS"))
        if chance.random() < 0.1:
            method, path, header, body = b"POST", b"/look", b"", self.picture
            return self.whole(method, path, header, body, len(body)), False, True
        path = b"/look" if chance.random() < 0.5 else chance.choice(PATHS).encode()
        header = b"" if chance.random() < 0.4 else chance.choice(HEADERS)
        body = self.picture
        draw = chance.random()
        if draw < 0.4:
            body = changed_bytes(body, chance)
        elif draw < 0.5:
            body = bytes(chance.randrange(UPLOAD - 100, UPLOAD * 4))
        elif draw < 0.6:
            body = b""
        length = len(body) if chance.random() < 0.9 else chance.randrange(1_000_000)
        request = self.whole(method, path, header, body, length)
        foreign = method == b"POST" and any(word in header for word in FOREIGN)
        if chance.random() < 0.2:
            end = request.index(b"Content-Length") + 40
            return changed_bytes(request[:end], chance) + request[end:], False, False
        return request, foreign, True

    def whole(self, method: bytes, path: bytes, header: bytes, body: bytes, length: int) -> bytes:
        head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % (method, path)
        return head + b"Content-Length: %d\r\n%s\r\n" % (length, header) + body

    def connect(self, content: bytes = b"") -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        with contextlib.suppress(ConnectionError):
            one.sendall(content)
        return one

    def sent(self, request: bytes, shape: str, chance: random.Random) -> bytes:
        """What comes back for a request that is sent at once, in part, or drop by drop."""
        parts = [request]
        if shape == "cut":
            parts = [request[: chance.randrange(len(request))]]
        elif shape == "slow":
            parts = [request[i : i + 20] for i in range(0, min(len(request), 400), 20)]
        with self.connect() as one:
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    one.sendall(part)
                    if shape == "slow":
                        time.sleep(0.05)
            received: list[bytes] = []

            def ended(seconds: float) -> bool:
                one.settimeout(max(0.001, seconds))
                with contextlib.suppress(ConnectionError):
                    try:
                        while part := one.recv(65536):
                            received.append(part)
                    except TimeoutError:
                        return False
                return True

            why = waited(ended, own, STILL, MOST)
            if why is not None:
                raise Finding(f"{shape} {request[:200]!r}: no answer: {why}")
        return b"".join(received)

    def alive(self, what: str) -> None:
        """It still answers, and has logged no traceback."""
        request = b"GET /models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        for again in range(10):  # on a busy machine it may take a whole request for a slow one
            if b"200 OK" in self.sent(request, "whole", random.Random(0)):
                break
            time.sleep(0.1 * again)
        else:
            raise Finding(f"after {what}: the server answers nobody")
        lines = [line for line in self.log.lines if "Traceback" in line or "rror" in line]
        self.log.lines.clear()
        if lines:
            raise Finding(f"after {what}: it logs {lines}")
