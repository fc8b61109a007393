"""Time limits for requests, and a limit to the number of connections.

uvicorn bounds the size of a request's head, idle connections after an answer, and shutdown. It
waits without end for the head of a first request, for a body, and for a client that does not read
its answer; and it accepts connections until the process has no file handles left. The protocol here
has limits:

    head      HEAD seconds from the connection, or from the last answer
    body      BODY seconds from the head, and one more a megabyte that is allowed
    answer    READ seconds in which nothing of it is taken

One connection too many closes the one that has been idle for the longest time.
"""

import asyncio
import logging
import os
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 64
ACCEPTED = 32  # connections that are accepted at once, before any of them is looked at
HANDLES = 64  # files that the rest of the process may need
HEAD = 10.0  # seconds
BODY = 30.0
READ = 30.0
SHUTDOWN = 2  # seconds for answers on their way
QUIET = 10.0  # seconds in which the same line is logged once


def config(application: Any, host: str, port: int, upload: int) -> uvicorn.Config:
    """uvicorn's settings for the page."""
    for logger in ("uvicorn.error", "asyncio"):
        logging.getLogger(logger).addFilter(Seldom())
    connections = allowed()
    return uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level="warning",
        http=protocol(connections, BODY + upload / 1_000_000),
        ws="none",
        lifespan="off",
        proxy_headers=False,
        backlog=min(ACCEPTED, connections),
        timeout_graceful_shutdown=SHUTDOWN,
    )


def allowed() -> int:
    """How many connections there may be, as file handles are limited too."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(4, min(CONNECTIONS, limit - HANDLES - 3 * ACCEPTED))


def protocol(connections: int, body: float) -> type[H11Protocol]:
    """uvicorn's protocol, with at most so many connections, and seconds for a body."""
    return type("PageProtocol", (Patient,), {"most": connections, "body_seconds": body})


class Patient(H11Protocol):
    """One connection with time limits."""

    most = CONNECTIONS
    body_seconds = BODY
    timer: asyncio.TimerHandle | None = None
    idle_since = 0.0
    answered: Any = None
    """The cycle (request and answer) that the timer last was set for."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._idle()
        others = [other for other in self.connections if isinstance(other, Patient)]
        others = [other for other in others if not other.transport.is_closing()]
        if len(others) > self.most:
            idle = [other for other in others if not other.is_busy]
            min(idle, key=lambda other: other.idle_since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and self.cycle is not self.answered:  # a request has begun
            self.answered = self.cycle
            if self.cycle.more_body:
                self._within(self.body_seconds)
        if self.is_busy and not self.cycle.more_body:
            self._stop()

    def on_response_complete(self) -> None:
        self._idle()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._within(READ)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_busy and not self.cycle.more_body:
            self._stop()

    @property
    def is_busy(self) -> bool:
        """Whether a request's head is here and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _idle(self) -> None:
        self.idle_since = time.monotonic()
        self._within(HEAD)

    def _within(self, seconds: float) -> None:
        self._stop()
        self.timer = self.loop.call_later(seconds, self._too_slow)

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _too_slow(self) -> None:
        if self.is_busy and not self.cycle.response_started:
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
            self.transport.close()
        else:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's server, which at its end does not wait for requests that have not arrived."""

    async def shutdown(self, sockets: Any = None) -> None:
        for connection in list(self.server_state.connections):
            patient = isinstance(connection, Patient) and connection.is_busy
            if patient and connection.cycle.more_body:
                connection.transport.abort()
        ending = asyncio.get_running_loop().call_later(SHUTDOWN + 1, os._exit, 0)
        await super().shutdown(sockets)
        ending.cancel()


class Seldom(logging.Filter):
    """A log filter: repeats of a line are rare, and lost connections print no traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        if isinstance(error, OSError):  # no file handles, a lost connection: the line says it
            record.msg, record.args = f"{record.getMessage()} ({error})".replace("\n", " "), ()
            record.exc_info = None
        line, now = str(record.msg), time.monotonic()
        if now - self.last.get(line, -QUIET) < QUIET:
            return False
        if len(self.last) > 100:
            self.last.clear()
        self.last[line] = now
        return True
