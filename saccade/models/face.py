"""The methods `predict`, `attention` and `transform` of networks, beside timm's own.

    model = saccade.load("linglo_nano")
    model.predict("cat.jpg")            names and scores; boxes or masks of detectors and segmenters
    model.attention("cat.jpg")          where each head of each layer looks, as arrays
    model.transform(picture)            the network's input for a picture, 3 H W

`saccade.face` does the work. Weights, `forward` and attributes of a network stay as they are.
`answering` adds the methods to networks of timm as well.
"""

from functools import cache
from importlib import import_module
from typing import Any

from torch import nn

ABOVE = "saccade.face.answer"  # reads pictures and knows tasks, which networks do not


def _above() -> Any:
    return import_module(ABOVE)


class Face:
    """The methods of networks that take pictures."""

    __jit_unused_properties__ = ("transform",)  # torch.jit.script compiles the others

    def predict(self, images: Any, **options: Any) -> Any:
        """The network's predictions for pictures, prepared as in its evaluation.

        Args:
            images: a file, folder or pattern, a PIL image, an array (H W 3 of bytes, or of numbers
                in 0..1), a tensor (3 H W, likewise), a batch of them, or a list of any of these
            options: `top`, how many classes are named (5); `score`, below which boxes are left out;
                `batch`, how many pictures go through the network together (16)

        Returns:
            an answer for one picture, a list for several: `labels` and `scores`, `boxes`, or `mask`
        """
        return _above().predict(self, images, **options)

    def attention(self, image: Any, **options: Any) -> Any:
        """Where each layer looks in a picture: arrays (heads H W) by the layer's name.

        Args:
            image: a file, a PIL image, an array or a tensor, as for `predict`
            options: `at=(row, column)`, the query pixel in the picture (SASA and QnA); `size`, of
                the network's input
        """
        return _above().attention(self, image, **options)

    @property
    def transform(self) -> Any:
        """From a picture (PIL) to the network's input: resized, cropped, normalised."""
        return _above().transform(self)

    def _repr_html_(self) -> str:
        return _above().card(self)


def answering(model: nn.Module) -> nn.Module:
    """Add the methods of `Face` to a network; its own methods of the same name stay."""
    kind = type(model)
    names = ("predict", "attention", "transform")
    if not isinstance(model, Face) and not any(hasattr(model, name) for name in names):
        model.__class__ = _with_face(kind)
    return model


@cache
def _with_face(kind: type) -> Any:
    """A subclass of `kind` with the methods of `Face`, under the same name."""
    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce_ex__": _reduced}
    return type(kind.__name__, (Face, kind), body)


def _reduced(self: Any, protocol: Any) -> Any:
    """How it is pickled: by the class that a module names."""
    (kind,) = (base for base in type(self).__bases__ if base is not Face)
    return _empty, (kind,), self.__dict__


def _empty(kind: type) -> Any:
    whole = _with_face(kind)
    return whole.__new__(whole)
