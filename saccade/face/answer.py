"""The work behind a model's methods `predict`, `attention`, `transform` and its notebook card.

Pictures are read and resized as by `saccade predict`, `detect`, `segment` and `view`.
"""

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from html import escape
from typing import Any

import torch
from torch import nn

from saccade.data.picture import Unreadable
from saccade.engine import session
from saccade.engine.session import LoadedModel
from saccade.face import sight
from saccade.face.attention import Attention
from saccade.face.pictures import Album, album
from saccade.infer.batches import answers
from saccade.models.describe import known_config
from saccade.tasks.answers import PictureAnswer

BATCH = 16
WORDS = {"top": "most", "score": "score"}  # options, and what a task's `predict` calls them


def predict(
    model: nn.Module,
    images: Any,
    *,
    top: int | None = None,
    score: float | None = None,
    batch: int = BATCH,
) -> Any:
    """A network's predictions for pictures; see `saccade.models.face.Face.predict`."""
    pictures, several = album(images)
    with _evaluating(model):
        one = trained(model)
        options = _options(one, {"top": top, "score": score})
        answers = list(_answers(one, pictures, options, batch))
    return answers if several else answers[0]


def _answers(
    one: LoadedModel, pictures: Album, options: dict[str, Any], batch: int
) -> Generator[PictureAnswer]:
    weight = next((p for p in one.task.parameters() if p.is_floating_point()), torch.empty(0))

    def decoded(output: dict[str, torch.Tensor], sizes: list[tuple[int, int]]) -> Any:
        return one.task.predict(output, sizes, **options)

    each = answers(
        pictures, one.task, one.transform(one.definition.whole(one.test)), decoded, weight.device,
        batch, 0 if pictures.in_memory else None, weight.dtype,
    )  # fmt: skip
    for i, answer in enumerate(each):
        if answer.error:
            raise ValueError(f"predict: {answer.error}")
        name = pictures.name(i)
        yield one.definition.answer(one.task, answer.prediction, pictures.photo(i), name)


def _options(one: LoadedModel, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are not None, under the names that the task has for them."""
    parameters = inspect.signature(one.task.predict).parameters
    for name, value in options.items():
        if value is not None and WORDS[name] not in parameters:
            raise ValueError(
                f"predict: {name} is nothing that a model trained to {one.definition.name} has, "
                f"got {name}={value}; leave it out"
            )
    top, score = options["top"], options["score"]
    if top is not None and (type(top) is not int or top < 1):
        raise ValueError(f"predict: top is how many classes are named, 1 or more, got {top!r}")
    if score is not None and not 0 <= score <= 1:
        raise ValueError(f"predict: score is a share in 0..1, got {score!r}")
    return {WORDS[name]: value for name, value in options.items() if value is not None}


def trained(model: Any) -> LoadedModel:
    """The network with its task; one without names of classes is refused."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    notes = getattr(model, "notes", None) or _notes_of_timm(model)
    if "classes" not in notes:
        raise ValueError(
            "predict: this model has no names of classes: its classifier is untrained; train it "
            "(saccade.train), or load one that is (saccade.load('linglo_nano'))"
        )
    return session.ready(model, device, notes)


def _notes_of_timm(model: nn.Module) -> dict[str, Any]:
    """Notes made from timm's description of its trained weights: classes and preprocessing."""
    about = known_config(model) or {}
    names = about.get("label_names")
    if not names or len(names) != getattr(model, "num_classes", -1):
        return {}
    test = {"size": about["input_size"][1], "crop": about["crop_pct"]}
    return {"classes": list(names), "test": {**test, "interpolation": about["interpolation"]}}


@contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    """In eval mode, and afterwards every module in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def attention(
    model: nn.Module,
    image: Any,
    *,
    at: tuple[int, int] | None = None,
    size: int | None = None,
) -> Attention:
    """Where each layer looks in a picture; see `saccade.models.face.Face.attention`."""
    pictures, several = album(image)
    if several or len(pictures) != 1:
        raise ValueError(
            f"attention: is of one picture, got {len(pictures)}; ask for each by itself"
        )
    with _evaluating(model):
        one = sight.sight_of(model, pictures.photo(0), pictures.name(0), size)
        return Attention.of(one, at)


def transform(model: nn.Module) -> Any:
    """The preprocessing of a picture for the network."""
    if (getattr(model, "notes", None) or _notes_of_timm(model)).get("test"):
        with _evaluating(model):
            try:
                return trained(model).transform()
            except ValueError:  # a new classifier: it sees what the former one saw
                pass
    import timm.data

    return timm.data.create_transform(**timm.data.resolve_model_data_config(model))


def card(model: Any) -> str:
    """A model's description as HTML for a notebook."""
    about, notes = known_config(model) or {}, getattr(model, "notes", {})
    parameters = sum(p.numel() for p in model.parameters())
    rows = {"architecture": about.get("architecture", type(model).__name__)}
    rows["parameters"] = f"{parameters:,}"
    if "input_size" in about:
        rows["input"] = " x ".join(map(str, about["input_size"]))
    names = notes.get("classes") or about.get("label_names") or ()
    if names:
        rows["classes"] = (
            f"{len(names)}: {', '.join(map(str, names[:8]))}{' ...' * (len(names) > 8)}"
        )
    for name, value in (notes.get("figures") or {}).items():
        rows[name] = f"{value:.4g}" if isinstance(value, float) else str(value)
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(str(k))}</th>"
        f"<td style='text-align:left'>{escape(str(v))}</td></tr>"
        for k, v in rows.items()
    )
    return f"<table>{cells}</table>"


__all__ = ["Unreadable", "attention", "card", "predict", "transform"]
