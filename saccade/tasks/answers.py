"""What a model says about one picture, for people: names and scores, boxes, regions, a picture.

answer = model.predict("cat.jpg")     label and score, or boxes, or a mask of class numbers
answer.draw().save("seen.png")        the same, drawn; a notebook shows it by itself
answer.plain()                        numbers, text and lists, for JSON
"""

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8
from PIL import Image

from saccade.draw.boxes import draw_boxes
from saccade.draw.masks import overlay

INLINE_SIDE = 480  # pixels of a picture's long side in a notebook
NAMED = 10  # boxes that a printed answer names


@dataclass(frozen=True, kw_only=True, repr=False)
class PictureAnswer(ABC):
    """What a model says about one picture."""

    photo: Image.Image
    """The input picture, upright and in RGB."""
    name: str = ""
    """Its file, or its number among the input pictures."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """The answer as numbers, text and lists."""

    @abstractmethod
    def __str__(self) -> str: ...

    def draw(self) -> Image.Image:
        """The picture with the answer drawn onto it."""
        return self.photo

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def _repr_html_(self) -> str:
        return (
            f"<figure>{_inline(self.draw())}<figcaption>{escape(str(self))}</figcaption></figure>"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassAnswer(PictureAnswer):
    """The likeliest classes, the likeliest first."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    """The share that the model gives to each; over all classes they sum to one."""

    @property
    def label(self) -> str:
        """The likeliest class."""
        return self.labels[0]

    @property
    def score(self) -> float:
        """The share of the likeliest class."""
        return self.scores[0]

    def plain(self) -> dict[str, Any]:
        rows = zip(self.labels, self.scores, strict=True)
        return {"guesses": [{"label": label, "share": score} for label, score in rows]}

    def __str__(self) -> str:
        rows = zip(self.labels, self.scores, strict=True)
        return ", ".join(f"{label} {100 * score:.1f}%" for label, score in rows)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(label)}</td><td style='width:12em'><div style='background:#0072b2;"
            f"height:.7em;width:{100 * score:.1f}%'></div></td><td>{100 * score:.1f}%</td></tr>"
            for label, score in zip(self.labels, self.scores, strict=True)
        )
        return f"<div>{_inline(self.photo, 240)}<table>{rows}</table></div>"


@dataclass(frozen=True, kw_only=True, repr=False)
class BoxAnswer(PictureAnswer):
    """The objects in a picture, those with the highest scores first."""

    boxes: Float[np.ndarray, "n 4"]
    """x0 y0 x1 y1 in pixels of the picture."""
    numbers: Int64[np.ndarray, "n"]
    """Class numbers."""
    scores: Float[np.ndarray, "n"]
    classes: tuple[str, ...] = field(repr=False)
    """The names of all classes that the model knows."""

    @property
    def labels(self) -> list[str]:
        """The class of each box."""
        return [self.classes[i] for i in self.numbers]

    def plain(self) -> dict[str, Any]:
        rows = zip(self.boxes.tolist(), self.labels, self.scores.tolist(), strict=True)
        return {"boxes": [{"box": b, "label": name, "score": s} for b, name, s in rows]}

    def __str__(self) -> str:
        if not len(self.boxes):
            return "no boxes"
        rows = list(zip(self.labels, self.scores, strict=True))[:NAMED]
        more = len(self.labels) - len(rows)
        words = ", ".join(f"{label} {100 * score:.0f}%" for label, score in rows)
        return f"{words} and {more} more" if more else words

    def draw(self) -> Image.Image:
        return draw_boxes(self.photo, _BoxRows(self.boxes, self.numbers, self.scores), self.classes)


@dataclass(frozen=True, kw_only=True, repr=False)
class InstanceAnswer(BoxAnswer):
    """The objects in a picture with a mask for each."""

    masks: Bool[np.ndarray, "n H W"] = field(repr=False)
    """True inside of the object."""

    def plain(self) -> dict[str, Any]:
        rows = super().plain()["boxes"]
        for row, mask in zip(rows, self.masks, strict=True):
            row |= {"mask": base64.b64encode(_png(Image.fromarray(mask))).decode()}
        return {"boxes": rows}

    def draw(self) -> Image.Image:
        rows = _BoxRows(self.boxes, self.numbers, self.scores, self.masks)
        return draw_boxes(self.photo, rows, self.classes)


@dataclass(frozen=True)
class _BoxRows:
    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    masks: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class MaskAnswer(PictureAnswer):
    """The class of every pixel."""

    mask: UInt8[np.ndarray, "H W"]
    """Class numbers, at the picture's own size."""
    classes: tuple[str, ...]
    """What the numbers stand for."""

    @property
    def shares(self) -> dict[str, float]:
        """The classes that the picture holds, the largest first, as shares of its pixels."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.classes))
        order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
        return {self.classes[i]: float(counts[i] / self.mask.size) for i in order}

    def plain(self) -> dict[str, Any]:
        stream = io.BytesIO()
        Image.fromarray(self.mask).save(stream, "PNG")
        png = base64.b64encode(stream.getvalue()).decode()
        return {"shares": self.shares, "mask": png, "classes": list(self.classes)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {100 * share:.1f}%" for name, share in self.shares.items())

    def draw(self) -> Image.Image:
        return overlay(self.photo, self.mask, list(self.classes))


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageAnswer(PictureAnswer):
    """A picture that the model made of the input: enlarged, or reconstructed."""

    picture: Image.Image

    def plain(self) -> dict[str, Any]:
        return {"picture": base64.b64encode(_png(self.picture)).decode()}

    def __str__(self) -> str:
        (w, h), (W, H) = self.photo.size, self.picture.size
        return f"{w} x {h} to {W} x {H} pixels"

    def draw(self) -> Image.Image:
        return self.picture


@dataclass(frozen=True, kw_only=True, repr=False)
class ValueAnswer(PictureAnswer):
    """The prediction of a task that has no answer class of its own, as it is."""

    value: Any
    SIMPLE: ClassVar[tuple[type, ...]] = (int, float, str, bool, list, dict, tuple)

    def plain(self) -> dict[str, Any]:
        return {"value": self.value if isinstance(self.value, self.SIMPLE) else str(self.value)}

    def __str__(self) -> str:
        return str(self.value)


def value_answer(task: Any, value: Any, photo: Image.Image, name: str) -> PictureAnswer:
    """The answer of a task that does not define one."""
    return ValueAnswer(photo=photo, name=name, value=value)


def image_answer(task: Any, value: Any, photo: Image.Image, name: str) -> PictureAnswer:
    """The answer of a task that predicts a picture, 3 H W in 0..1."""
    pixels = value.mul(255).round().byte().permute(1, 2, 0).cpu().numpy()
    return ImageAnswer(photo=photo, name=name, picture=Image.fromarray(pixels))


def summed_up(answers: Sequence[PictureAnswer]) -> str:
    """A text with one line for each answer."""
    return "\n".join(f"{answer.name}: {answer}" for answer in answers)


def _inline(picture: Image.Image, side: int = INLINE_SIDE) -> str:
    """A picture as HTML, made small and embedded in the page."""
    small = picture.copy()
    small.thumbnail((side, side))
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(_png(small)).decode()}">'


def _png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()
