"""Attention maps of one picture: arrays by layer name, and a drawing of them."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saccade import view
from saccade.data.picture import LARGE
from saccade.face.sight import Sight

FEW = 4  # heads of a stage on a sheet


@dataclass(frozen=True, repr=False)
class Attention(Mapping[str, np.ndarray]):
    """A map for each head (heads H W) of every attention layer, by the layer's name in the network.

    maps = model.attention("cat.jpg")
    maps["backbone.stages.0.blocks.0.mix"]      an array
    maps.draw("attention.png")                  the last layer of each stage over the picture
    """

    maps: dict[str, np.ndarray]
    labels: dict[str, list[str]]
    """The label of each map of a layer, such as its head or query."""
    what: str
    """What the maps show, in words."""
    photo: np.ndarray
    """The part of the picture that the network sees, in 0..1."""
    ring: tuple[float, float] | None = None
    """The place that looks, the picture's height and width being 1."""

    @classmethod
    def of(cls, sight: Sight, at: tuple[int, int] | None = None) -> "Attention":
        """Of what a network sees; `at` is a row and a column of the picture."""
        family = view.attention_of(sight.net, type(sight.net).__name__)
        pixel = None if at is None else sight.within(at, "at")
        maps, labels, what, place = view.maps_of(sight.net, sight.x, family, pixel)
        return cls(maps, labels, what, sight.photo, place)

    def __getitem__(self, layer: str) -> np.ndarray:
        return self.maps[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)

    def __repr__(self) -> str:
        shapes = (f"{name} {tuple(maps.shape)}" for name, maps in self.maps.items())
        return f"Attention({self.what}; {', '.join(shapes)})"

    def draw(self, path: str | Path | None = None, heads: int | None = FEW) -> Any:
        """The last layer of each stage over the picture; written to `path`, or as a PIL image.

        Args:
            path: a PNG, or a GIF that shows stage after stage
            heads: how many of each stage, those that differ most; all if None
        """
        laid, labels = {}, {}
        for stage, layer in view.last_layers(self.maps).items():
            maps = self.maps[layer]
            head_numbers = range(len(maps)) if heads is None else view.most_different(maps, heads)
            laid[stage] = maps[list(head_numbers)]
            labels[stage] = [self.labels[layer][i] for i in head_numbers]
        most = max(map(len, laid.values()))
        side = view.SMALL if most > FEW else view.LARGE
        options: dict[str, Any] = {"ring": self.ring, "clip": 99.0, "side": side}
        if path is None:
            return view.sheet(self.photo, laid, self.what, labels, **options)
        return view.picture(self.photo, laid, path, self.what, labels, **options)

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        small = self.draw()
        small.thumbnail((1200, LARGE))
        small.save(stream, "PNG")
        return stream.getvalue()
