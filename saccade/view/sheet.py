"""Maps over a picture, laid out on one sheet; it needs matplotlib (the viz extra)."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from saccade.draw.style import plain_style, unmarked
from saccade.files import writing

ACROSS = 8  # maps in a row; more go on in the next
FRAME = 1200  # milliseconds of a stage
SMALL, LARGE, FULL = 1.6, 3.4, 6.8  # inches of a map: many, a few, and two that fill the width
OVER = 0.6  # how much a map covers of the photo


def picture(
    image: Float[np.ndarray, "H W 3"],
    maps: Mapping[str, Float[np.ndarray, "..."]],
    path: str | Path,
    title: str = "",
    names: Sequence[str] | Mapping[str, Sequence[str]] = (),
    *,
    ring: tuple[float, float] | None = None,
    clip: float = 100.0,
    signed: bool = False,
    side: float = SMALL,
    smooth: bool = False,
    tile: Mapping[str, int] | None = None,
) -> Path:
    """Lay each map over the image, the heads of an entry side by side, and save the sheet.

    Each map has its own colour scale, unless they are `signed`.

    Args:
        image: the picture below the maps
        maps: by the name of an entry, such as a stage: one map for each head
        path: where to save; a GIF shows one entry after the other
        title: above the sheet
        names: labels instead of "head 1", ..., for all entries or, as a mapping, for each
        ring: a place of the image to mark, as shares of its height and width
        clip: the percentile of a map that gets the brightest colour
        signed: maps share one scale around zero
        side: inches of a map's width
        smooth: interpolate between the pixels of a map
        tile: for entries of windows laid side by side, the pixels of a window: lines separate them,
            and the image is not drawn
    """
    across = min(max(len(heads) for heads in maps.values()), ACROSS)
    how: dict[str, Any] = {
        "ring": ring, "clip": clip, "signed": signed, "across": across, "side": side,
        "smooth": smooth, "tile": tile,
    }  # fmt: skip
    if Path(path).suffix.lower() == ".gif":
        frames = [sheet(image, {name: heads}, title, names, **how) for name, heads in maps.items()]
        wide, high = (max(frame.size[i] for frame in frames) for i in (0, 1))
        film = Image.new("RGB", (wide, high * len(frames)), "white")
        for i, frame in enumerate(frames):
            film.paste(frame, (0, i * high))
        film = film.quantize(256, dither=Image.Dither.NONE)  # one palette, so that nothing flickers
        laid = [film.crop((0, i * high, wide, (i + 1) * high)) for i in range(len(frames))]
        with writing(path):
            laid[0].save(path, save_all=True, append_images=laid[1:], duration=FRAME, loop=0)
    else:
        whole = sheet(image, maps, title, names, **how)
        with writing(path):
            whole.save(path)
    return Path(path)


@plain_style()
def sheet(
    image: Float[np.ndarray, "H W 3"],
    maps: Mapping[str, Float[np.ndarray, "..."]],
    title: str,
    names: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    ring: tuple[float, float] | None = None,
    clip: float = 100.0,
    signed: bool = False,
    across: int | None = None,
    side: float = SMALL,
    smooth: bool = False,
    tile: Mapping[str, int] | None = None,
) -> Image.Image:
    """The sheet that `picture` saves, as an image; `across` maps lie in a row."""
    tile = tile or {}
    across = across or min(max(len(heads) for heads in maps.values()), ACROSS)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = {name: -(-len(heads) // across) for name, heads in maps.items()}
    H, W = image.shape[:2]
    first = min(side, LARGE) / side  # the photo's width in maps
    width, letters = side * (first + across), 7 + (side > SMALL) + (side > LARGE)
    figure = Figure(
        figsize=(width, sum(rows.values()) * (side * H / W + 0.26) + 0.5), layout="constrained"
    )
    canvas = FigureCanvasAgg(figure)
    widths = {"width_ratios": [first, *[1] * across]}
    axes = figure.subplots(sum(rows.values()), 1 + across, squeeze=False, gridspec_kw=widths)
    for axis in axes.flat:
        axis.axis("off")
    grey, place, top = image.mean(2), (0, W, H, 0), 0
    most = max(float(np.abs(heads).max()) for heads in maps.values())
    heatmap = None
    for name, heads in maps.items():
        axes[top, 0].imshow(image, extent=place)
        axes[top, 0].set_anchor("N")
        row_names = names.get(name, ()) if isinstance(names, Mapping) else names
        axes[top, 0].set_title(_folded(name, 11 * first * side), fontsize=letters + 1, loc="left")
        if ring is not None:
            at = {"x": [ring[1] * W], "y": [ring[0] * H]}
            axes[top, 0].scatter(**at, s=60, facecolors="none", edgecolors="black", linewidths=3)
            axes[top, 0].scatter(**at, s=60, facecolors="none", edgecolors="white", linewidths=1.5)
        for i, head in enumerate(heads):
            axis = axes[top + i // across, 1 + i % across]
            low, high = (-most, most) if signed else (head.min(), np.percentile(head, clip))
            colours = {"cmap": "RdBu_r" if signed else "viridis", "vmin": low, "vmax": high}
            axis.imshow(grey, cmap="gray", extent=place)
            heatmap = axis.imshow(
                head, **colours, alpha=1.0 if name in tile else OVER, extent=place,
                interpolation="bilinear" if smooth else "nearest",
            )  # fmt: skip
            if name in tile:
                _part(axis, (H, W), [length // tile[name] for length in head.shape])
            label = row_names[i] if row_names else f"head {i + 1}"
            axis.set_title(unmarked(label), fontsize=letters, pad=2)
        top += rows[name]
    if signed and heatmap is not None:
        figure.colorbar(heatmap, ax=axes, label="part of the logit", fraction=0.05)
    if title:
        figure.suptitle(_folded(title, 13 * width), fontsize=10)
    figure.set_dpi(110)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _part(axis: Any, size: tuple[int, int], windows: Sequence[int]) -> None:
    """Lines between windows that lie side by side."""
    (H, W), (down, along) = size, windows
    how = {"colors": "white", "linewidths": 0.6}
    axis.hlines([H * i / down for i in range(1, down)], 0, W, **how)
    axis.vlines([W * j / along for j in range(1, along)], 0, H, **how)


def _folded(text: str, letters: float) -> str:
    """In lines of at most so many letters."""
    return unmarked("\n".join(textwrap.wrap(text, max(8, int(letters)))))
