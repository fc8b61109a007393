"""What the page shows of a model and a picture: figures, classes, and a map for every head."""

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saccade import view, weights
from saccade.data.picture import to_input
from saccade.engine import session
from saccade.engine.session import LoadedModel
from saccade.layers.qna import LearnedQueryAttention
from saccade.models import zoo
from saccade.models.describe import timm_config
from saccade.models.saved import located
from saccade.paper import count

MOST = 448  # short side of what a model is shown
LEAST = 32
LONG = 4  # its long side, in short sides of a usual picture

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
