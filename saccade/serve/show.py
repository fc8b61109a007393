"""The page's data for a model and a picture: figures, classes, and a map for every head."""

import base64
import io
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

MOST = 448  # pixels of the short side of a model's input
LEAST = 32
LONG = 4  # its long side, in short sides of a usual picture

NONE = "this model has no attention of its family, so there is no map to show"
CHECKERED = (
    "The down-sampling layer moves its windows by {} pixels: neighbouring pixels lie in unequal "
    "numbers of windows, hence the checkerboard."
)
EVIDENCE = "what speaks for (red) and against (blue) each class, over the mean of all classes"
LARGEST_SIDE = 1000  # pixels of the long side of a picture with its boxes or regions


@dataclass(frozen=True)
class PageModel:
    """A model, and what the page shows about it."""

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
    """A model for the page: a run, a saved model, or a variant by name."""
    if located(model) is not None:
        trained: LoadedModel | None = session.open_model(model)
        net: Any = trained.task.net
        side = min(_side(trained.test, net), MOST)
    else:
        net, trained = zoo.build(model).eval(), None
        side = min(timm_config(net)["input_size"][1], MOST)
    name = title or titles([model])[0]
    figures = {
        "architecture": timm_config(net)["architecture"],
        "task": trained.definition.name if trained is not None else "",
        "trained": trained is not None,
        "classes": len(trained.classes) if trained is not None else 0,
        "parameters": count.params(net),
        "macs": _macs(net, side),
        "side": side,
        "milliseconds": _latency(net, side),
        "evidence": trained is not None and _has_evidence(net),
    }
    return PageModel(name, net, _family(net), trained, side, figures)


def _side(test: Any, net: Any) -> int:
    """The short side of a model's input in its evaluation."""
    side = getattr(test, "size", None) or getattr(test, "short", None)
    return side if isinstance(side, int) else timm_config(net)["input_size"][1]


def _family(net: Any) -> str:
    """The kind of attention that a network has; by its name where it has none."""
    try:
        return view.attention_of(net, "")
    except ValueError:
        architecture = timm_config(net)["architecture"]
        return zoo.family_of(architecture) if architecture in zoo.VARIANTS else ""


def _macs(net: Any, side: int) -> int:
    try:
        return count.macs(net, (side, side))
    except Exception:  # networks of timm may do what cannot be counted without numbers
        return 0


def _has_evidence(net: Any) -> bool:
    """Whether its head averages before it multiplies."""
    if not isinstance(net, zoo.Classifier) or not isinstance(net.head.fc, torch.nn.Linear):
        return False
    return net.head.global_pool.pool_type == "avg"


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
    evidence: bool = False,
) -> dict[str, Any]:
    """A model's prediction for a picture, and its attention maps.

    Args:
        model: the model
        photo: the picture, upright and in RGB
        at: the place of the query pixel, as shares of height and width
        classes: whether to give classes, boxes or regions
        evidence: whether to give the evidence maps of the likeliest classes
    """
    predicted = _answer(model, photo) if classes else {}
    answer: dict[str, Any] = {
        "guesses": predicted.pop("guesses", []) if classes else None,
        "boxes": predicted.pop("boxes", None),
        "shares": predicted.pop("shares", None),
        "drawn": predicted.pop("drawn", None),
        "what": NONE,
        "note": "",
        "at": None,
        "stages": [],
        "evidence": None,
    }
    W, H = fitted(photo.size, model.side)
    pixels = np.asarray(photo.resize((W, H), Image.Resampling.BICUBIC), np.float32) / 255
    x = to_input(pixels, timm_config(model.net))
    if evidence and model.figures.get("evidence"):
        answer["evidence"] = _evidence(model, x)
    if not _layers(model):
        return answer
    pixel = None if at is None else (min(int(at[0] * H), H - 1), min(int(at[1] * W), W - 1))
    pointed = pixel if model.family in ("qna", "sasa") else None
    maps, labels, answer["what"], _ = view.maps_of(model.net, x, model.family, pointed)
    for stage, name in view.last_layers(maps).items():
        layer = model.net.get_submodule(name)
        answer["stages"].append({"name": stage, "labels": labels[name], **_packed(maps[name])})
        if pointed is None and isinstance(layer, LearnedQueryAttention) and layer.stride > 1:
            answer["note"] = CHECKERED.format(layer.stride)
    if pixel is not None or model.family == "sasa":
        y, z = pixel if pixel is not None else (H // 2, W // 2)
        answer["at"] = [y / H, z / W]
    return answer


def fitted(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height with a short side of `side`, or less of it for a long picture."""
    short, long = min(size), max(size)
    scale = max(min(side / short, LONG * side / long), LEAST / short)
    W, H = (max(LEAST, round(n * scale)) for n in size)
    return W, H


def _layers(model: PageModel) -> bool:
    """Whether there are layers whose attention can be drawn."""
    kind = {**view.BY_WEIGHTS, **view.LAYERS}.get(model.family)
    return kind is not None and any(isinstance(layer, kind) for layer in model.net.modules())


@torch.no_grad()
def _answer(model: PageModel, photo: Image.Image) -> dict[str, Any]:
    """Classes, boxes or regions; for other tasks, their answer as a picture."""
    one = model.trained
    if one is None:
        return {}
    image = one.transform(one.definition.whole(one.test))(photo)[None]
    size = torch.tensor([image.shape[2:]])
    output = one.task.infer(image, size)
    (prediction,) = one.task.predict(output, [(photo.height, photo.width)])
    answer = one.definition.answer(one.task, prediction, photo, "")
    plain = answer.plain()
    if "guesses" not in plain:
        plain["drawn"] = _jpeg(answer.draw())
    return plain


def _jpeg(picture: Image.Image) -> str:
    small = picture.copy()
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=88)
    return base64.b64encode(stream.getvalue()).decode()


@torch.no_grad()
def _evidence(model: PageModel, x: torch.Tensor) -> dict[str, Any]:
    """Evidence maps of the three likeliest classes as bytes on one scale; 128 is zero."""
    shares, labels = model.net(x)[0].softmax(-1).topk(min(3, model.figures["classes"]))
    maps = view.class_evidence(model.net, x, labels.tolist(), fine=True, relative=True)
    most = max(float(np.abs(maps).max()), 1e-12)
    assert model.trained is not None
    names = [model.trained.classes[i] for i in labels.tolist()]
    marks = [f"{name} {100 * share:.1f}%" for name, share in zip(names, shares, strict=True)]
    letters = np.round(128 + 127 * maps / most).clip(0, 255).astype(np.uint8).tobytes()
    packed = {"shape": list(maps.shape), "maps": base64.b64encode(letters).decode()}
    return {"name": EVIDENCE, "labels": marks, "most": most, **packed}


def _packed(maps: np.ndarray) -> dict[str, Any]:
    """Maps as bytes in base64, each scaled from its smallest to its largest value."""
    low = maps.min((1, 2), keepdims=True)
    span = np.maximum(maps.max((1, 2), keepdims=True) - low, 1e-12)
    letters = base64.b64encode(np.round(255 * (maps - low) / span).astype(np.uint8).tobytes())
    return {"shape": list(maps.shape), "maps": letters.decode()}
