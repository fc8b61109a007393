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
from saccade.data import picture
from saccade.data.picture import Unreadable, rgb, to_input
from saccade.engine import session
from saccade.engine.session import LoadedModel
from saccade.layers.qna import LearnedQueryAttention
from saccade.models import zoo
from saccade.models.describe import timm_config
from saccade.models.saved import located
from saccade.paper import count

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
class PageModel:
    """A model and what the page tells of it."""

    name: str
    net: Any
    family: str
    trained: LoadedModel | None
    """None for a model that was not trained: it has attention but knows no classes."""
    side: int
    figures: dict[str, Any]


def titles(models: Sequence[str]) -> list[str]:
    """Names of models on the page: the shortest ends of their paths that differ."""
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


def loaded(model: str, title: str = "") -> PageModel:
    """A model for the page: a run, a saved classifier, or a variant by name."""
    if located(model) is not None:
        trained: LoadedModel | None = session.opened(model)
        if trained.definition.answers is None:
            what = trained.definition.name
            raise ValueError(f"serve: the page cannot show what {what!r} models say; got {model!r}")
        net: Any = trained.task.net
        side = min(trained.test.size, MOST)
    else:
        net, trained = zoo.build(model).eval(), None
        side = min(timm_config(net)["input_size"][1], MOST)
    architecture = timm_config(net)["architecture"]
    if architecture not in zoo.VARIANTS:
        raise ValueError(f"serve: {model!r} is a {architecture!r}; give a model of saccade")
    figures = {
        "architecture": architecture,
        "trained": trained is not None,
        "classes": len(trained.classes) if trained is not None else 0,
        "parameters": count.params(net),
        "macs": count.macs(net, (side, side)),
        "side": side,
        "milliseconds": _latency(net, side),
    }
    name = title or titles([model])[0]
    return PageModel(name, net, zoo.family_of(architecture), trained, side, figures)


@torch.no_grad()
def _latency(net: Any, side: int, times: int = 5) -> float:
    """The shortest of a few runs for one image, in milliseconds."""
    x, best = torch.randn(1, 3, side, side), float("inf")
    for _ in range(times):
        start = time.perf_counter()
        net(x)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def look(
    model: PageModel,
    photo: Image.Image,
    at: tuple[float, float] | None = None,
    classes: bool = True,
) -> dict[str, Any]:
    """Classes and maps; `at` is a place in the picture, its height and width being 1."""
    layers = _layers(model)
    answer: dict[str, Any] = {
        "guesses": _guesses(model, photo) if classes else None,
        "what": _what(model.family, at is not None) if layers else NONE,
        "note": "",
        "at": None,
        "stages": [],
    }
    if not layers:
        return answer
    W, H = fitted(photo.size, model.side)
    pixels = np.asarray(photo.resize((W, H), Image.Resampling.BICUBIC), np.float32) / 255
    x = to_input(pixels, timm_config(model.net))
    y, z = (0.5, 0.5) if at is None else at
    pixel = min(int(y * H), H - 1), min(int(z * W), W - 1)
    maps = _maps(model, x, pixel if at is not None else None, pixel)
    for name, layer in layers.items():
        heads = maps[name]
        labels = _labels(layer, len(heads))
        answer["stages"].append({"name": _called(name, layer), "labels": labels, **_packed(heads)})
        if at is None and _strided(layer):
            answer["note"] = CHECKERED.format(layer.stride)
    if at is not None or model.family == "sasa":
        answer["at"] = [pixel[0] / H, pixel[1] / W]
    return answer


def fitted(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height with a short side of `side`, or less of it for a long picture."""
    short, long = min(size), max(size)
    scale = max(min(side / short, LONG * side / long), LEAST / short)
    W, H = (max(LEAST, round(n * scale)) for n in size)
    return W, H


def _layers(model: PageModel) -> dict[str, Any]:
    """The last attention layer of each stage, by its name in the network."""
    kind, last = view.LAYERS[model.family], {}
    for name, layer in model.net.named_modules():
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
    model: PageModel, x: torch.Tensor, at: tuple[int, int] | None, middle: tuple[int, int]
) -> dict[str, np.ndarray]:
    if model.family == "sasa":
        return view.sasa_attention(model.net, x, middle)
    if model.family == "linglo":
        return view.linglo_saliency(model.net, x)
    if at is not None:
        return view.qna_attention(model.net, x, at)
    summed = view.qna_summed_attention(model.net, x)
    return {name: m.reshape(-1, *m.shape[2:]) for name, m in summed.items()}


def _what(family: str, at_one_pixel: bool) -> str:
    if family == "qna" and at_one_pixel:
        return "where the windows of one pixel look, query after query"
    return ABOUT[family]


@torch.no_grad()
def _guesses(model: PageModel, photo: Image.Image) -> list[dict[str, Any]]:
    one = model.trained
    if one is None or one.definition.answers is None:
        return []
    return one.definition.answers(one.task, one.task(one.transform()(photo)[None]))


def _packed(maps: np.ndarray) -> dict[str, Any]:
    """Maps as bytes in base64, each scaled from its smallest to its largest value."""
    low = maps.min((1, 2), keepdims=True)
    span = np.maximum(maps.max((1, 2), keepdims=True) - low, 1e-12)
    letters = base64.b64encode(np.round(255 * (maps - low) / span).astype(np.uint8).tobytes())
    return {"shape": list(maps.shape), "maps": letters.decode()}


# -- the server -----------------------------------------------------------------------------


def opened(content: bytes) -> Image.Image:
    """A picture that somebody sent; anything else is refused in a sentence."""
    try:
        with picture.opened(io.BytesIO(content), "what was sent", PIXELS) as file:
            W, H = file.size
    except Unreadable as error:
        if "pixels" in error.reason:
            raise
        raise Unreadable("what was sent", "it is no picture; send a JPEG, PNG or WebP") from error
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


def app(models: Sequence[PageModel | str], upload: int = UPLOAD, host: str = "127.0.0.1") -> Any:
    """The server as an ASGI application; a model given by name is loaded once it is asked for."""
    try:
        from fastapi import FastAPI, HTTPException, Request
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import HTMLResponse, JSONResponse
        from starlette.concurrency import run_in_threadpool
    except ImportError as error:
        raise ImportError("serve: needs fastapi; pip install 'saccade[web]'") from error
    server = FastAPI(title="saccade", docs_url=None, redoc_url=None, openapi_url=None)
    entries = list(models)
    turn = threading.Lock()
    page = resources.files("saccade").joinpath("page.html").read_text()
    own = {"localhost", "127.0.0.1", "::1", host}

    async def guarded(request: Any, following: Any) -> Any:
        """Another site's page must not reach us by a name of its own."""
        if alone(host) and _named(request.headers.get("host", "")) not in own:
            return JSONResponse({"detail": "this page is reached as localhost alone"}, 400)
        return await following(request)

    server.middleware("http")(guarded)

    async def mistyped(_: Any, error: Any) -> Any:
        wrong = error.errors()[0]
        sentence = f"{wrong['loc'][-1]} is a number, got {wrong.get('input')!r}; try 0"
        return JSONResponse({"detail": sentence}, 422)

    server.exception_handler(RequestValidationError)(mistyped)

    @server.get("/", response_class=HTMLResponse)
    async def _page() -> str:
        return page

    @server.get("/models")
    async def _models() -> list[dict[str, Any]]:
        return [_model_facts(entry) for entry in entries]

    def in_turn(
        content: bytes, model: int, at: tuple[float, float] | None, classes: bool
    ) -> dict[str, Any]:
        with turn:
            photo, entry = opened(content), entries[model]
            if isinstance(entry, str):
                entry = entries[model] = loaded(entry)
            return {"model": _model_facts(entry), **look(entry, photo, at, classes)}

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
                sentence = "this picture takes more memory than there is; send a smaller one"
                raise HTTPException(413, sentence) from error
            if isinstance(error, Unreadable):
                raise HTTPException(415, str(error)) from error
            logging.getLogger("saccade").exception("serve: model %d failed on a picture", model)
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            sentence = f"the model failed on this picture ({why}); choose another model or picture"
            raise HTTPException(500, sentence) from error

    look_at.__annotations__["request"] = Request
    server.post("/look")(look_at)
    return server


def _model_facts(entry: PageModel | str) -> dict[str, Any]:
    """What the page shows about a model; only its name if it is not loaded yet."""
    if isinstance(entry, str):
        return {"name": entry, "trained": True, "loaded": False}
    return {"name": entry.name, "family": entry.family, "loaded": True, **entry.figures}
