"""Where attention looks, as arrays: each function takes a model and an image and draws nothing.

    maps = linglo_saliency(model, image)      {"backbone.stages.0.blocks.1.mix": h x H x W, ...}

`picture` turns such maps into one sheet; it needs matplotlib (the viz extra).
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from saccade.files import writing
from saccade.layers.layout import MapLayer
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.sasa import StandAloneAttention
from saccade.models.zoo import Classifier

Layer = TypeVar("Layer", bound=nn.Module)
LAYERS: dict[str, type[nn.Module]] = {
    "linglo": KeyOnlyAttention,
    "qna": LearnedQueryAttention,
    "sasa": StandAloneAttention,
}


@torch.no_grad()
def watch(
    model: nn.Module, image: Float[Tensor, "1 C H W"], kind: type[Layer]
) -> dict[str, tuple[Layer, Tensor]]:
    """Every layer of one kind, by name and in order, with what it reads when the model sees."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, kind)}
    if not layers:
        raise ValueError(f"view: this model has no {kind.__name__}; try a model of another paper")
    reads: dict[str, Tensor] = {}

    def keep(name: str) -> torch.utils.hooks.RemovableHandle:
        return layers[name].register_forward_pre_hook(
            lambda _, inputs: reads.__setitem__(name, inputs[0])
        )

    hooks = [keep(name) for name in layers]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()(image)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
    return {name: (layers[name], _own(layers[name], x)) for name, x in reads.items()}


def _own(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer reads, in the layout in which it computes."""
    return layer.mapped(x)[0] if isinstance(layer, MapLayer) and layer.layout else x


# -- LinGlo ---------------------------------------------------------------------------------------


@torch.no_grad()
def linglo_saliency(model: nn.Module, image: Float[Tensor, "1 C H W"]) -> dict[str, np.ndarray]:
    """The saliency of every key-only layer: a map per head (h, H, W), each summing to one."""
    return {
        name: layer.weights(x)[0].permute(2, 0, 1).float().cpu().numpy()
        for name, (layer, x) in watch(model, image, KeyOnlyAttention).items()
    }


# -- QnA ------------------------------------------------------------------------------------------


def qna_sum(
    weights: Float[Tensor, "Ho Wo L h k k"], stride: int, padding: int, size: tuple[int, int]
) -> Float[np.ndarray, "L h H W"]:
    """What each pixel receives from all windows that hold it (supplement, Fig. 1)."""
    k, (H, W) = weights.shape[-1], size
    Ho, Wo = weights.shape[:2]
    total = weights.new_zeros(*weights.shape[2:4], H + 2 * padding + k, W + 2 * padding + k)
    for a in range(k):
        for b in range(k):
            rows = slice(a, a + (Ho - 1) * stride + 1, stride)
            columns = slice(b, b + (Wo - 1) * stride + 1, stride)
            total[:, :, rows, columns] += weights[..., a, b].permute(2, 3, 0, 1)
    return total[:, :, padding : padding + H, padding : padding + W].float().cpu().numpy()


def qna_tiles(weights: Float[Tensor, "Ho Wo L h k k"]) -> Float[np.ndarray, "L h Hk Wk"]:
    """The kernel of every window, laid side by side instead of overlapping (Fig. 2)."""
    tiled = weights.permute(2, 3, 0, 4, 1, 5)  # L h Ho k Wo k
    return tiled.flatten(4, 5).flatten(2, 3).float().cpu().numpy()


@torch.no_grad()
def qna_summed_attention(
    model: nn.Module, image: Float[Tensor, "1 C H W"]
) -> dict[str, np.ndarray]:
    """For every learned-query layer, per query and head (L, h, H, W): attention summed by pixel."""
    return {
        name: qna_sum(layer.weights(x)[0], layer.stride, layer.padding, (x.shape[1], x.shape[2]))
        for name, (layer, x) in watch(model, image, LearnedQueryAttention).items()
    }


@torch.no_grad()
def qna_kernels(model: nn.Module, image: Float[Tensor, "1 C H W"]) -> dict[str, np.ndarray]:
    """For every learned-query layer, per query and head (L, h, Ho k, Wo k): its kernels, tiled."""
    return {
        name: qna_tiles(layer.weights(x)[0])
        for name, (layer, x) in watch(model, image, LearnedQueryAttention).items()
    }


@torch.no_grad()
def qna_attention(
    model: nn.Module, image: Float[Tensor, "1 C H W"], at: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Where the window under one pixel (row, column) looks, in every learned-query layer.

    A heat map per query and head (L h, H, W) over the map that the layer reads; what a window
    gives to places outside the map is cut off.
    """
    H, W = image.shape[2:]
    if not (0 <= at[0] < H and 0 <= at[1] < W):
        raise ValueError(f"qna_attention: the image has {H}x{W} pixels, got {at=}")
    pictures: dict[str, np.ndarray] = {}
    for name, (layer, x) in watch(model, image, LearnedQueryAttention).items():
        weights = layer.weights(x)[0]  # Ho Wo L h k k
        i, j = at[0] * weights.shape[0] // H, at[1] * weights.shape[1] // W
        one, p, k = weights[i, j].flatten(0, 1), layer.padding, weights.shape[-1]
        h, w = x.shape[1:3]
        sheet = one.new_zeros(len(one), h + 2 * p + k, w + 2 * p + k)
        top, left = i * layer.stride, j * layer.stride
        sheet[:, top : top + k, left : left + k] = one
        pictures[name] = sheet[:, p : p + h, p : p + w].float().cpu().numpy()
    return pictures


# -- SASA -----------------------------------------------------------------------------------------


def sasa_heat(
    weights: Float[Tensor, "*heads k k"], at: tuple[int, int], size: tuple[int, int]
) -> Float[np.ndarray, "*heads H W"]:
    """The weights of one query pixel laid over its map, zero wherever the window does not reach.

    What a window gives to pixels outside the map (border="zero") is cut off: such a heat map sums
    to less than one.
    """
    (i, j), (H, W), p = at, size, weights.shape[-1] // 2
    heat = weights.new_zeros(*weights.shape[:-2], H, W)
    top, left = max(i - p, 0), max(j - p, 0)
    bottom, right = min(i + p + 1, H), min(j + p + 1, W)
    seen = weights[..., top - i + p : bottom - i + p, left - j + p : right - j + p]
    heat[..., top:bottom, left:right] = seen
    return heat.float().cpu().numpy()


@torch.no_grad()
def sasa_attention(
    model: nn.Module, image: Float[Tensor, "1 C H W"], at: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Where each attention layer looks from one pixel (row, column) of the image.

    For every StandAloneAttention a heat map per head (h, H, W) over the map that the layer reads,
    seen from that map's pixel under `at`.
    """
    H, W = image.shape[2:]
    if not (0 <= at[0] < H and 0 <= at[1] < W):
        raise ValueError(f"sasa_attention: the image has {H}x{W} pixels, got {at=}")
    pictures: dict[str, np.ndarray] = {}
    for name, (layer, x) in watch(model, image, StandAloneAttention).items():
        h, w = x.shape[2:]
        pixel = (at[0] * h // H, at[1] * w // W)
        pictures[name] = sasa_heat(layer.weights(x, [pixel])[0, :, 0], pixel, (h, w))
    return pictures


# -- classes --------------------------------------------------------------------------------------


@torch.no_grad()
def class_evidence(
    model: nn.Module, image: Float[Tensor, "1 C H W"], labels: Sequence[int]
) -> Float[np.ndarray, "n h w"]:
    """Where a classifier's decision comes from: each pixel's own part of a class's logit.

        logit_c - bias_c = mean over pixels of W_c . f(pixel)

    The head averages before it multiplies, so this is exact and takes no gradient. A map's mean is
    the logit without its bias; below zero a pixel speaks against the class.
    """
    if not isinstance(model, Classifier) or not isinstance(model.head.fc, nn.Linear):
        raise ValueError("class_evidence: takes a classifier of saccade with a linear head")
    if model.head.global_pool.pool_type != "avg":
        raise ValueError("class_evidence: the head must average over pixels (global_pool='avg')")
    training = model.training
    f = model.eval().forward_features(image)[0].float()
    model.train(training)
    return torch.einsum("kc,chw->khw", model.head.fc.weight[list(labels)].float(), f).cpu().numpy()


# -- drawing --------------------------------------------------------------------------------------


def attention_of(model: nn.Module, called: str) -> str:
    """Whose attention a model has: the family's name."""
    for family, kind in LAYERS.items():
        if any(isinstance(module, kind) for module in model.modules()):
            return family
    raise ValueError(f"view: {called!r} has no attention to draw, of any of the three papers")


def stage_of(layer: str) -> int:
    """Of a layer by its name, counted from 1."""
    return int(layer.split("stages.")[1].split(".")[0]) + 1


def last_layers(layers: Iterable[str]) -> dict[str, str]:
    """The last layer of each stage, by a name for the stage. A net without stages has them all.

    QnA's last stage learns no queries but on its way down, which its name says.
    """
    names = list(layers)
    staged = {stage_of(name): name for name in names if "stages." in name}
    if not staged:
        return {name: name for name in names}
    return {
        f"stage {stage}{', way down' if '.down' in name else ''}": name
        for stage, name in staged.items()
    }


def last_of_each_stage(maps: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One entry a stage, named so: what a sheet has room for."""
    return {stage: maps[layer] for stage, layer in last_layers(maps).items()}


def most_different(maps: Float[np.ndarray, "n H W"], count: int) -> list[int]:
    """Which maps to draw where there is room for few: strong ones that do not repeat each other.

    Each is the one of which most is left once what it shares with those chosen before is taken
    away (QR with pivots, of each map over its mean).
    """
    rest = maps.reshape(len(maps), -1).astype(np.float64)
    rest = rest / np.maximum(rest.mean(1, keepdims=True), 1e-12)
    rest -= rest.mean(1, keepdims=True)
    chosen: list[int] = []
    while len(chosen) < min(count, len(maps)):
        lengths = np.linalg.norm(rest, axis=1)
        lengths[chosen] = -1.0
        one = int(lengths.argmax())
        chosen.append(one)
        if lengths[one] > 0:
            along = rest[one] / lengths[one]
            rest = rest - np.outer(rest @ along, along)
    return sorted(chosen)


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

    A path that ends in .gif shows the entries one after the other. `names` stand for "head 1", ...,
    in all entries or, as a mapping, in each. `ring` marks a place of the image, its height and
    width being 1. Each map has its own scale, up to what `clip` percent of its pixels do not
    exceed; `signed` ones share a scale around zero. `side` is a map's width in inches; `smooth`
    interpolates between its pixels. `tile` says of entries that are windows laid side by side how
    many pixels a window has: lines part them, and no photo shines through.
    """
    across = min(max(len(heads) for heads in maps.values()), ACROSS)
    how: dict[str, Any] = {
        "ring": ring, "clip": clip, "signed": signed, "across": across, "side": side,
        "smooth": smooth, "tile": tile or {},
    }  # fmt: skip
    if Path(path).suffix.lower() == ".gif":
        frames = [_sheet(image, {name: heads}, title, names, **how) for name, heads in maps.items()]
        wide, high = (max(frame.size[i] for frame in frames) for i in (0, 1))
        film = Image.new("RGB", (wide, high * len(frames)), "white")
        for i, frame in enumerate(frames):
            film.paste(frame, (0, i * high))
        film = film.quantize(256, dither=Image.Dither.NONE)  # one palette, so that nothing flickers
        laid = [film.crop((0, i * high, wide, (i + 1) * high)) for i in range(len(frames))]
        with writing(path):
            laid[0].save(path, save_all=True, append_images=laid[1:], duration=FRAME, loop=0)
    else:
        sheet = _sheet(image, maps, title, names, **how)
        with writing(path):
            sheet.save(path)
    return Path(path)


def _sheet(
    image: Float[np.ndarray, "H W 3"],
    maps: Mapping[str, Float[np.ndarray, "..."]],
    title: str,
    names: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    ring: tuple[float, float] | None,
    clip: float,
    signed: bool,
    across: int,
    side: float,
    smooth: bool,
    tile: Mapping[str, int],
) -> Image.Image:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'saccade[viz]'") from error

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
    drawn = None
    for name, heads in maps.items():
        axes[top, 0].imshow(image, extent=place)
        axes[top, 0].set_anchor("N")
        called = names.get(name, ()) if isinstance(names, Mapping) else names
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
            drawn = axis.imshow(
                head, **colours, alpha=1.0 if name in tile else OVER, extent=place,
                interpolation="bilinear" if smooth else "nearest",
            )  # fmt: skip
            if name in tile:
                _part(axis, (H, W), [length // tile[name] for length in head.shape])
            label = called[i] if called else f"head {i + 1}"
            axis.set_title(label, fontsize=letters, pad=2)
        top += rows[name]
    if signed and drawn is not None:
        figure.colorbar(drawn, ax=axes, label="part of the logit", fraction=0.05)
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
    return "\n".join(textwrap.wrap(text, max(8, int(letters))))
