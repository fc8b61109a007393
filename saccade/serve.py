"""A local page: drop a picture, see what models say and where they look.

    GET  /         the page, whole in itself: no build, no network
    GET  /models   what there is: parameters, operations, latency, kind of attention
    POST /look     the bytes of a picture; ?model=0&y=.5&x=.5 for where one pixel looks,
                   &classes=0 to be spared the classes

Nothing is kept of a picture. One is looked at at a time, the others wait their turn.
"""

import base64
import io
import ipaddress
import logging
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

from saccade import view, weights
from saccade.data.picture import Unreadable, rgb, to_input
from saccade.engine import session
from saccade.layers.qna import LearnedQueryAttention
from saccade.models import zoo
from saccade.models.describe import card
from saccade.models.saved import located
from saccade.paper import count
from saccade.tasks.classify import Classify

UPLOAD = 10_000_000  # bytes
PIXELS = 50_000_000
LONGEST = 20  # times as long as wide
MOST = 448  # short side of what a model is shown
LEAST = 32
LONG = 4  # its long side, in short sides of a usual picture

ABOUT = {
    "linglo": "saliency: one map a head, the same for every pixel",
    "qna": "attention that each pixel receives from all windows that hold it",
    "sasa": "where one pixel looks, in its neighbourhood",
}
NONE = "this model has no attention of its family, so there is no map to show"
CHECKERED = (
    "The way down moves its windows by {} pixels: neighbouring pixels lie in unequal numbers of "
    "windows, hence the checkerboard."
)


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


def titles(models: Sequence[str]) -> list[str]:
    """What the page calls models: as little of their paths as tells them apart."""
    paths = [_parts(model) for model in models]

    def alone(parts: tuple[str, ...], n: int) -> bool:
        return sum(other[-n:] == parts[-n:] for other in set(paths)) == 1

    needed = [
        next((n for n in range(1, len(parts)) if alone(parts, n)), len(parts)) for parts in paths
    ]
    return ["/".join(parts[-n:]) for parts, n in zip(paths, needed, strict=True)]


def _parts(model: str) -> tuple[str, ...]:
    if Path(model).exists():
        return Path(model).resolve().parts
    return (weights.full(model) or model,)


def loaded(model: str, title: str = "") -> Shown:
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
    name = title or titles([model])[0]
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


def look(
    shown: Shown,
    photo: Image.Image,
    at: tuple[float, float] | None = None,
    classes: bool = True,
) -> dict[str, Any]:
    """Classes and maps; `at` is a place in the picture, its height and width being 1."""
    layers = _layers(shown)
    told: dict[str, Any] = {
        "guesses": _guesses(shown, photo) if classes else None,
        "what": _what(shown.family, at is not None) if layers else NONE,
        "note": "",
        "at": None,
        "stages": [],
    }
    if not layers:
        return told
    W, H = fitted(photo.size, shown.side)
    pixels = np.asarray(photo.resize((W, H), Image.Resampling.BICUBIC), np.float32) / 255
    x = to_input(pixels, card(shown.net))
    y, z = (0.5, 0.5) if at is None else at
    pixel = min(int(y * H), H - 1), min(int(z * W), W - 1)
    maps = _maps(shown, x, pixel if at is not None else None, pixel)
    for name, layer in layers.items():
        heads = maps[name]
        labels = _labels(layer, len(heads))
        told["stages"].append({"name": _called(name, layer), "labels": labels, **_packed(heads)})
        if at is None and _strided(layer):
            told["note"] = CHECKERED.format(layer.stride)
    if at is not None or shown.family == "sasa":
        told["at"] = [pixel[0] / H, pixel[1] / W]
    return told


def fitted(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height with a short side of `side`, or less of it for a long picture."""
    short, long = min(size), max(size)
    scale = max(min(side / short, LONG * side / long), LEAST / short)
    W, H = (max(LEAST, round(n * scale)) for n in size)
    return W, H


def _layers(shown: Shown) -> dict[str, Any]:
    """The last attention layer of each stage, by its name in the network."""
    kind, last = view.LAYERS[shown.family], {}
    for name, layer in shown.net.named_modules():
        if isinstance(layer, kind) and "stages." in name:
            last[view.stage_of(name)] = name, layer
    return dict(last.values())


def _strided(layer: Any) -> bool:
    return isinstance(layer, LearnedQueryAttention) and layer.stride > 1


def _called(name: str, layer: Any) -> str:
    return f"stage {view.stage_of(name)}" + (", way down" if _strided(layer) else "")


def _labels(layer: Any, maps: int) -> list[str]:
    """What each map of a layer is of, in their order: heads, or those of query after query."""
    if not isinstance(layer, LearnedQueryAttention):
        return [f"head {i + 1}" for i in range(maps)]
    return [f"query {i // layer.heads + 1}, head {i % layer.heads + 1}" for i in range(maps)]


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


def _named(host: str) -> str:
    """The name in a Host header, without its port; [::1] is ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _short_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)  # torch's words


def app(models: Sequence[Shown | str], upload: int = UPLOAD, host: str = "127.0.0.1") -> Any:
    """The server as an ASGI application; a model given by name is loaded once it is asked for."""
    try:
        from fastapi import FastAPI, HTTPException, Request
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import HTMLResponse, JSONResponse
        from starlette.concurrency import run_in_threadpool
    except ImportError as error:
        raise ImportError("serve: needs fastapi; pip install 'saccade[web]'") from error
    made = FastAPI(title="saccade", docs_url=None, redoc_url=None, openapi_url=None)
    entries = list(models)
    turn = threading.Lock()
    page = resources.files("saccade").joinpath("page.html").read_text()
    own = {"localhost", "127.0.0.1", "::1", host}

    async def guarded(request: Any, following: Any) -> Any:
        """Another site's page must not reach us by a name of its own."""
        if alone(host) and _named(request.headers.get("host", "")) not in own:
            return JSONResponse({"detail": "this page is reached as localhost alone"}, 400)
        return await following(request)

    made.middleware("http")(guarded)

    async def mistyped(_: Any, error: Any) -> Any:
        wrong = error.errors()[0]
        said = f"{wrong['loc'][-1]} is a number, got {wrong.get('input')!r}; try 0"
        return JSONResponse({"detail": said}, 422)

    made.exception_handler(RequestValidationError)(mistyped)

    @made.get("/", response_class=HTMLResponse)
    async def _page() -> str:
        return page

    @made.get("/models")
    async def _models() -> list[dict[str, Any]]:
        return [_told(entry) for entry in entries]

    def in_turn(
        content: bytes, model: int, at: tuple[float, float] | None, classes: bool
    ) -> dict[str, Any]:
        with turn:
            photo, entry = opened(content), entries[model]
            if isinstance(entry, str):
                entry = entries[model] = loaded(entry)
            return {"model": _told(entry), **look(entry, photo, at, classes)}

    async def look_at(
        request: Request, model: int = 0, y: float = -1, x: float = -1, classes: int = 1
    ) -> Any:
        if not 0 <= model < len(entries):
            raise HTTPException(404, f"there are models 0 to {len(entries) - 1}, got {model}")
        content, size = bytearray(), 0
        async for part in request.stream():  # to its end: a browser that still sends hears nothing
            size += len(part)
            if size <= upload:
                content += part
            elif size > 10 * upload:
                break
        if size > upload:
            raise HTTPException(413, f"a picture may have {upload // 1_000_000} MB at most")
        at = (min(y, 1.0), min(x, 1.0)) if y >= 0 and x >= 0 else None
        try:
            return await run_in_threadpool(in_turn, bytes(content), model, at, bool(classes))
        except Exception as error:
            if _short_of_memory(error) or _short_of_memory(error.__cause__):
                said = "this picture takes more memory than there is; send a smaller one"
                raise HTTPException(413, said) from error
            if isinstance(error, Unreadable):
                raise HTTPException(415, str(error)) from error
            logging.getLogger("saccade").exception("serve: model %d failed on a picture", model)
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            said = f"the model failed on this picture ({why}); choose another model or picture"
            raise HTTPException(500, said) from error

    look_at.__annotations__["request"] = Request
    made.post("/look")(look_at)
    return made


def _told(entry: Shown | str) -> dict[str, Any]:
    """What the page knows of a model; little of one that is not loaded yet."""
    if isinstance(entry, str):
        return {"name": entry, "trained": True, "loaded": False}
    return {"name": entry.name, "family": entry.family, "loaded": True, **entry.figures}
