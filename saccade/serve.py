"""A local page: drop a picture, see what models say and where they look.

    GET  /         the page, whole in itself: no build, no network
    GET  /models   what is loaded: parameters, operations, latency, kind of attention
    POST /look     the bytes of a picture; ?model=0&y=.5&x=.5 for where one pixel looks

Nothing is kept of a picture. One is looked at at a time, the others wait their turn.
"""

import base64
import io
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saccade import count, view, weights
from saccade.data.picture import Unreadable, rgb, to_input
from saccade.engine import session
from saccade.models import zoo
from saccade.models.saved import card, located
from saccade.tasks.classify import Classify

UPLOAD = 10_000_000  # bytes
PIXELS = 50_000_000
MOST = 448  # short side of what a model is shown
LOOPBACK = ("127.0.0.1", "localhost", "::1")

ABOUT = {
    "linglo": "saliency: one map a head, the same for every pixel",
    "qna": "attention that each pixel receives from all windows that hold it",
    "sasa": "where one pixel looks, in its neighbourhood",
}


@dataclass(frozen=True)
class Shown:
    """A model and what the page tells of it."""

    name: str
    net: Any
    family: str
    task: Classify | None
    """None for a model that was not trained: it has attention but knows no classes."""
    transform: Any
    side: int
    figures: dict[str, Any]


def loaded(model: str) -> Shown:
    """A run, a saved classifier, or a variant by name: trained if it comes so."""
    if located(model) is not None:
        ready = session.opened(model)
        if not isinstance(ready.task, Classify):
            raise ValueError(f"serve: {model!r} names no classes; give a classifier")
        task: Classify | None = ready.task
        net: Any = ready.task.net
        about = card(net)
        transform = ready.kind.test(ready.test, about["mean"], about["std"])
        side = min(ready.test.size, MOST)
    else:
        net, task, transform = zoo.build(model).eval(), None, None
        side = min(card(net)["input_size"][1], MOST)
    architecture = card(net)["architecture"]
    if architecture not in zoo.VARIANTS:
        raise ValueError(f"serve: {model!r} is a {architecture!r}; give a model of saccade")
    figures = {
        "architecture": architecture,
        "trained": task is not None,
        "classes": len(task.classes) if task is not None else 0,
        "parameters": count.params(net),
        "macs": count.macs(net, (side, side)),
        "side": side,
        "milliseconds": _latency(net, side),
    }
    name = weights.full(model) or Path(model).name
    return Shown(name, net, zoo.family_of(architecture), task, transform, side, figures)


@torch.no_grad()
def _latency(net: Any, side: int, times: int = 5) -> float:
    """The best of a few, for one image."""
    x, best = torch.randn(1, 3, side, side), float("inf")
    for _ in range(times):
        start = time.perf_counter()
        net(x)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def look(shown: Shown, photo: Image.Image, at: tuple[float, float] | None = None) -> dict[str, Any]:
    """Classes and maps; `at` is a place in the picture, its height and width being 1."""
    side = shown.side
    scale = side / min(photo.size)
    W, H = (max(32, round(n * scale)) for n in photo.size)
    pixels = np.asarray(photo.resize((W, H), Image.Resampling.BICUBIC), np.float32) / 255
    x = to_input(pixels, card(shown.net))
    y, z = (0.5, 0.5) if at is None else at
    pixel = min(int(y * H), H - 1), min(int(z * W), W - 1)
    stages = view.last_of_each_stage(_maps(shown, x, pixel if at is not None else None, pixel))
    return {
        "guesses": _guesses(shown, photo),
        "what": _what(shown.family, at is not None),
        "at": [pixel[0] / H, pixel[1] / W] if at is not None or shown.family == "sasa" else None,
        "stages": [{"name": name, **_packed(maps)} for name, maps in stages.items()],
    }


def _maps(
    shown: Shown, x: torch.Tensor, at: tuple[int, int] | None, middle: tuple[int, int]
) -> dict[str, np.ndarray]:
    if shown.family == "sasa":
        return view.sasa_attention(shown.net, x, middle)
    if shown.family == "linglo":
        return view.linglo_saliency(shown.net, x)
    if at is not None:
        return view.qna_attention(shown.net, x, at)
    summed = view.qna_summed_attention(shown.net, x)
    return {name: m.reshape(-1, *m.shape[2:]) for name, m in summed.items()}


def _what(family: str, asked: bool) -> str:
    if family == "qna" and asked:
        return "where the windows of one pixel look, query after query"
    return ABOUT[family]


@torch.no_grad()
def _guesses(shown: Shown, photo: Image.Image) -> list[dict[str, Any]]:
    if shown.task is None:
        return []
    (found,) = shown.task.predict(shown.task(shown.transform(photo)[None]))
    return [guess._asdict() for guess in found]


def _packed(maps: np.ndarray) -> dict[str, Any]:
    """Heads as bytes, each from its own least to its own most."""
    low = maps.min((1, 2), keepdims=True)
    span = np.maximum(maps.max((1, 2), keepdims=True) - low, 1e-12)
    letters = base64.b64encode(np.round(255 * (maps - low) / span).astype(np.uint8).tobytes())
    return {"shape": list(maps.shape), "maps": letters.decode()}


# -- the server -----------------------------------------------------------------------------


def opened(content: bytes) -> Image.Image:
    """A picture that somebody sent; anything else is refused in a sentence."""
    try:
        with Image.open(io.BytesIO(content)) as file:
            W, H = file.size
    except Exception as error:
        raise Unreadable("what was sent", "it is no picture; send a JPEG, PNG or WebP") from error
    if W * H > PIXELS:
        raise Unreadable("what was sent", f"{W} x {H} pixels, at most {PIXELS:,} are read")
    if min(W, H) < 2:
        raise Unreadable("what was sent", f"{W} x {H} pixels are too few")
    return rgb(io.BytesIO(content), "what was sent")


def app(models: Sequence[Shown], upload: int = UPLOAD, host: str = "127.0.0.1") -> Any:
    """The server as an ASGI application."""
    try:
        from fastapi import FastAPI, HTTPException, Request
        from fastapi.responses import HTMLResponse
        from starlette.concurrency import run_in_threadpool
        from starlette.middleware.trustedhost import TrustedHostMiddleware
    except ImportError as error:
        raise ImportError("serve: needs fastapi; pip install 'saccade[web]'") from error
    made = FastAPI(title="saccade", docs_url=None, redoc_url=None, openapi_url=None)
    if host in LOOPBACK:  # another site's page must not reach us by a name of its own
        made.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "testserver"])
    turn = threading.Lock()
    page = resources.files("saccade").joinpath("page.html").read_text()

    @made.get("/", response_class=HTMLResponse)
    async def _page() -> str:
        return page

    @made.get("/models")
    async def _models() -> list[dict[str, Any]]:
        return [{"name": shown.name, "family": shown.family, **shown.figures} for shown in models]

    def in_turn(content: bytes, shown: Shown, at: tuple[float, float] | None) -> dict[str, Any]:
        with turn:
            return look(shown, opened(content), at)

    async def look_at(request: Request, model: int = 0, y: float = -1, x: float = -1) -> Any:
        if not 0 <= model < len(models):
            raise HTTPException(404, f"there are models 0 to {len(models) - 1}, got {model}")
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > upload:
                raise HTTPException(413, f"a picture may have {upload // 1_000_000} MB at most")
        at = (min(y, 1.0), min(x, 1.0)) if y >= 0 and x >= 0 else None
        try:
            return await run_in_threadpool(in_turn, bytes(content), models[model], at)
        except Unreadable as error:
            raise HTTPException(415, str(error)) from error

    look_at.__annotations__["request"] = Request
    made.post("/look")(look_at)
    return made
