"""The page's server, an ASGI application.

    GET  /                the page: one file that loads nothing else
    GET  /models          the models: parameters, operations, latency, kind of attention
    GET  /samples         a list of sample pictures, and each of them
    POST /look            the bytes of a picture; ?model=0&y=.5&x=.5 for where one pixel looks,
                          &classes=0 to leave the classes out, &evidence=1 for what spoke for them
    GET  /docs            this, for people; /openapi.json for programs

No picture is stored. One is processed at a time, the others wait. All pictures that wait or are
still arriving share a budget of memory; `limits` bounds how long a request may take to arrive.
"""

import ctypes
import io
import ipaddress
import logging
import sys
import threading
from collections.abc import Sequence
from importlib import resources
from typing import Any

from PIL import Image

from saccade import samples
from saccade.data import picture
from saccade.data.picture import Unreadable, rgb
from saccade.serve import describe
from saccade.serve.show import PageModel, loaded, look
from saccade.version import __version__

UPLOAD = 10_000_000  # bytes
TOGETHER = 8  # such uploads may be held at a time, whole or not
PIXELS = 50_000_000
LONGEST = 20  # times as long as wide
SCANS = 100  # of a JPEG, each of which goes over all pixels; cameras and programs write about 10


def open_upload(content: bytes) -> Image.Image:
    """The uploaded picture; anything else is refused in a sentence."""
    try:
        with picture.open_image(io.BytesIO(content), "what was sent", PIXELS) as file:
            W, H = file.size
            scans = content.count(b"\xff\xda") if file.format in ("JPEG", "MPO") else 0
    except Unreadable as error:
        if "pixels" in error.reason:
            raise
        raise Unreadable("what was sent", "it is no picture; send a JPEG, PNG or WebP") from error
    if scans > SCANS:
        raise Unreadable("what was sent", f"{scans} scans, at most {SCANS} are read")
    if min(W, H) < 2:
        raise Unreadable("what was sent", f"{W} x {H} pixels are too few")
    if max(W, H) > LONGEST * min(W, H):
        raise Unreadable(
            "what was sent",
            f"{W} x {H} pixels, more than {LONGEST} times as long as wide; send a part of it",
        )
    return rgb(io.BytesIO(content), "what was sent")


def alone(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def app(
    models: Sequence[PageModel | str],
    upload: int = UPLOAD,
    host: str = "127.0.0.1",
    name: str = "",
) -> Any:
    """The server as an ASGI application; a model given by name is loaded once it is asked for.

    Args:
        models: loaded models, or names of some that come with saccade
        upload: bytes that a picture may have
        host: the address that is listened on
        name: a further name by which browsers reach the page, such as a reverse proxy's
    """
    try:
        from fastapi import FastAPI, HTTPException, Request
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import HTMLResponse, JSONResponse, Response
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect
    except ImportError as error:
        raise ImportError("serve: needs fastapi; pip install 'saccade[web]'") from error
    server = FastAPI(
        title="saccade", version=__version__, description=describe.ABOUT, docs_url=None,
        redoc_url=None, openapi_url="/openapi.json",
    )  # fmt: skip
    entries = list(models)
    turn = threading.Lock()
    budget = _Budget(TOGETHER * upload)
    page = resources.files("saccade").joinpath("page.html").read_text()
    server.add_middleware(_Guard, host=host, name=name, response=JSONResponse)

    async def mistyped(_: Any, error: Any) -> Any:
        wrong = error.errors()[0]
        sentence = f"{wrong['loc'][-1]} is a number, got {wrong.get('input')!r}; try 0"
        return JSONResponse({"detail": sentence}, 422)

    server.exception_handler(RequestValidationError)(mistyped)

    @server.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def _page() -> str:
        return page

    @server.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def _docs() -> str:
        return describe.page(server.openapi())

    @server.get("/models", **describe.MODELS)
    async def _models() -> list[dict[str, Any]]:
        return [_model_facts(entry) for entry in entries]

    @server.get("/samples", **describe.SAMPLES)
    async def _samples() -> list[str]:
        return list(samples.NAMES)

    @server.get("/samples/{name}", response_class=Response, **describe.SAMPLE)
    async def _sample(name: str) -> Any:
        if name not in samples.NAMES:
            raise HTTPException(404, f"there are {', '.join(samples.NAMES)}")
        return Response(samples.path(name).read_bytes(), media_type="image/jpeg")

    def in_turn(
        content: bytes,
        model: int,
        at: tuple[float, float] | None,
        classes: bool,
        evidence: bool,
    ) -> dict[str, Any]:
        with turn:
            try:
                photo, entry = open_upload(content), entries[model]
                if isinstance(entry, str):
                    entry = entries[model] = loaded(entry)
                return {"model": _model_facts(entry), **look(entry, photo, at, classes, evidence)}
            finally:
                photo = None
                _return_memory()

    async def body(request: Any, share: _Share) -> bytes:
        """All that is sent, unless it is too much."""
        parts, size = [], 0
        async for part in request.stream():  # browsers read no answer before they have sent all
            size += len(part)
            if size <= upload:
                if not share.take(len(part)):
                    sentence = "too many pictures are sent at a time; try again in a minute"
                    raise HTTPException(503, sentence, {"connection": "close"})
                parts.append(part)
            else:
                parts.clear()
                share.give_back()
                if size > 10 * upload:
                    break
        if size > upload:
            sentence = f"a picture may have {upload // 1_000_000} MB at most"
            raise HTTPException(413, sentence, {"connection": "close"})
        return b"".join(parts)

    async def look_at(
        request: Request,
        model: int = 0,
        y: float = -1,
        x: float = -1,
        classes: int = 1,
        evidence: int = 0,
    ) -> Any:
        if not 0 <= model < len(entries):
            raise HTTPException(404, f"there are models 0 to {len(entries) - 1}, got {model}")
        at = (min(y, 1.0), min(x, 1.0)) if y >= 0 and x >= 0 else None
        with _Share(budget) as share:
            try:
                content = await body(request, share)
                parts = bool(classes), bool(evidence)
                return await run_in_threadpool(in_turn, content, model, at, *parts)
            except ClientDisconnect:  # the browser has closed the connection
                return Response(status_code=499)
            except (HTTPException, Unreadable) as error:
                if isinstance(error, Unreadable):
                    raise HTTPException(415, str(error)) from error
                raise
            except Exception as error:
                if _short_of_memory(error) or _short_of_memory(error.__cause__):
                    sentence = "this picture takes more memory than there is; send a smaller one"
                    raise HTTPException(413, sentence) from error
                logging.getLogger("saccade").exception("serve: model %d failed on a picture", model)
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                sentence = (
                    f"the model failed on this picture ({why}); choose another model or picture"
                )
                raise HTTPException(500, sentence) from error

    look_at.__annotations__["request"] = Request
    server.post("/look", **describe.LOOK)(look_at)
    return server


def _model_facts(entry: PageModel | str) -> dict[str, Any]:
    """What the page shows about a model; only its name if it is not loaded yet."""
    if isinstance(entry, str):
        return {"name": entry, "trained": True, "loaded": False}
    return {"name": entry.name, "family": entry.family, "loaded": True, **entry.figures}


# -- who may ask ----------------------------------------------------------------------------


class _Guard:
    """Refuses requests that other sites' pages send, by their Host and Origin headers."""

    def __init__(self, app: Any, host: str, name: str, response: Any):
        self.app, self.response = app, response
        self.names = {"localhost", "127.0.0.1", "::1", host} if alone(host) else None
        if self.names is not None and name:
            self.names.add(name.lower())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = self.refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            code, sentence = refusal
            answer = self.response({"detail": sentence}, code, {"connection": "close"})
            await answer(scope, receive, send)

    def refusal(self, scope: Any) -> tuple[int, str] | None:
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.names is not None and _host_name(host) not in self.names:
            return 400, "this page is reached as localhost alone"
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site", "none")
        if site not in ("same-origin", "none") or (
            origin is not None and origin.partition("://")[2].lower() != host.lower()
        ):
            return 403, "another site's page may not send pictures here; open this page itself"
        return None


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; [::1] is ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


# -- memory ---------------------------------------------------------------------------------


class _Budget:
    """Bytes that all requests together may hold."""

    def __init__(self, limit: int):
        self.left = limit  # only the event loop's thread changes it


class _Share:
    """What one request holds of the budget, until it ends."""

    def __init__(self, budget: _Budget):
        self.budget, self.size = budget, 0

    def take(self, size: int) -> bool:
        if size > self.budget.left:
            return False
        self.budget.left -= size
        self.size += size
        return True

    def give_back(self) -> None:
        self.budget.left += self.size
        self.size = 0

    def __enter__(self) -> "_Share":
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


def _short_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)  # torch's words


def _return_memory() -> None:
    """Give freed memory back to the system, which glibc would keep for this thread."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries have none
        if trim is not None:
            trim(0)
