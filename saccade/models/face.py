"""What a trained network answers to people, in methods beside timm's own.

    model = saccade.load("linglo_nano")
    model.predict("cat.jpg")            names and scores; boxes or masks, for what finds those
    model.attention("cat.jpg")          where each head of each layer looks, as arrays
    model.transform(picture)            what the network is shown of a picture, 3 H W

`saccade.face` does the work. A network that has these methods is otherwise what it was: same
weights, same `forward`, same attributes. `answering` gives them to networks of timm as well.
"""

from functools import cache
from importlib import import_module
from typing import Any

from torch import nn

ABOVE = "saccade.face.answer"  # reads pictures and knows tasks, which networks do not


def _above() -> Any:
    return import_module(ABOVE)


class Face:
    """Methods of networks for people."""

    __jit_unused_properties__ = ("transform",)  # torch.jit.script compiles the others

    def predict(self, images: Any, **options: Any) -> Any:
        """What the network says about pictures, looked at as they were in its training.

        Args:
            images: a file, folder or pattern, a PIL image, an array (H W 3 of bytes, or of numbers
                in 0..1), a tensor (3 H W, likewise), a batch of them, or a list of any of these
            options: `top`, how many classes are named (5); `score`, below which boxes are left out;
                `batch`, how many pictures are looked at together (16)

        Returns:
            an answer for one picture, a list for several: `labels` and `scores`, `boxes`, or `mask`
        """
        return _above().predict(self, images, **options)

    def attention(self, image: Any, **options: Any) -> Any:
        """Where each layer looks in a picture: arrays (heads H W) by the layer's name.

        Args:
            image: a file, a PIL image, an array or a tensor, as for `predict`
            options: `at=(row, column)`, a pixel of the picture that looks (SASA and QnA); `size`,
                at which the network sees the picture
        """
        return _above().attention(self, image, **options)

    @property
    def transform(self) -> Any:
        """A picture (PIL) to what the network is shown: resized, centred, normalised."""
        return _above().transform(self)

    def _repr_html_(self) -> str:
        return _above().card(self)


def answering(model: nn.Module) -> nn.Module:
    """The same network with the methods of `Face`; one that uses their names keeps its own."""
    kind = type(model)
    names = ("predict", "attention", "transform")
    if not isinstance(model, Face) and not any(hasattr(model, name) for name in names):
        model.__class__ = _with_face(kind)
    return model


@cache
def _with_face(kind: type) -> Any:
    """A class that is `kind` with a face, under its name."""
    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce_ex__": _reduced}
    return type(kind.__name__, (Face, kind), body)


def _reduced(self: Any, protocol: Any) -> Any:
    """How it is pickled: by the class that a module names."""
    (kind,) = (base for base in type(self).__bases__ if base is not Face)
    return _empty, (kind,), self.__dict__


def _empty(kind: type) -> Any:
    whole = _with_face(kind)
    return whole.__new__(whole)
