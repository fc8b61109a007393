"""Attention maps as arrays: each function takes a model and an image, and draws nothing.

    maps = linglo_saliency(model, image)      {"backbone.stages.0.blocks.1.mix": h x H x W, ...}

`saccade.view.sheet` lays such maps over the picture.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

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
BY_WEIGHTS: dict[str, type[nn.Module]] = {}
"""Layers whose `weights(x)` give B H W h, by word: saccade.register adds those from outside."""


@torch.no_grad()
def watch(
    model: nn.Module, image: Float[Tensor, "1 C H W"], kind: type[Layer]
) -> dict[str, tuple[Layer, Tensor]]:
    """Every layer of one kind, by name and in order, with its input for the image."""
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
    """A layer's input, in the layout in which it computes."""
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
    """For each pixel the sum of its weights in all windows that hold it (supplement, Fig. 1)."""
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
    inside = weights[..., top - i + p : bottom - i + p, left - j + p : right - j + p]
    heat[..., top:bottom, left:right] = inside
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


SHIFTS = 4  # positions each way at which finer evidence is measured, within one stride


@torch.no_grad()
def class_evidence(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    labels: Sequence[int],
    fine: bool = False,
    relative: bool = False,
) -> Float[np.ndarray, "n h w"]:
    """The share of each pixel in the logit of a class: where a classifier's decision comes from.

        logit_c - bias_c = mean over pixels of W_c . f(pixel)

    The head averages before it multiplies, so this is exact and takes no gradient. A map's mean is
    the logit without its bias; a negative pixel lowers the logit.

    Args:
        model: a classifier of saccade
        image: the model's input
        labels: numbers of classes
        fine: on a grid 4 times as fine each way: the image goes through the model 16 times, shifted
            by quarters of the last stride, and the 16 maps are interleaved; their mean is the mean
            logit of all shifted images
        relative: minus the mean over all classes, because the softmax depends on differences only
    """
    if not isinstance(model, Classifier) or not isinstance(model.head.fc, nn.Linear):
        raise ValueError("class_evidence: takes a classifier of saccade with a linear head")
    if model.head.global_pool.pool_type != "avg":
        raise ValueError("class_evidence: the head must average over pixels (global_pool='avg')")
    training, every = model.training, model.head.fc.weight.float()
    weight = (every - every.mean(0) if relative else every)[list(labels)]
    model.eval()
    try:
        if not fine:
            f = model.forward_features(image)[0].float()
            return torch.einsum("kc,chw->khw", weight, f).cpu().numpy()
        return _between(model, image, weight).cpu().numpy()
    finally:
        model.train(training)


def _between(
    model: Classifier, image: Float[Tensor, "1 C H W"], weight: Float[Tensor, "n D"]
) -> Float[Tensor, "n h w"]:
    """The evidence of shifted images, interleaved into one fine map.

    A cell of a view that is shifted by (a, b) has its middle at (i + 1/2) stride + (a, b): views
    that are shifted by -3/8, -1/8, 1/8 and 3/8 of a stride together fill a grid of quarters.
    """
    stride = model.backbone.strides[-1]
    step, pad = stride // SHIFTS, stride // 2
    offsets = [step * i - (SHIFTS - 1) * step // 2 for i in range(SHIFTS)]
    H, W = image.shape[2:]
    padded = F.pad(image, (pad,) * 4, mode="replicate")
    rows = []
    for dy in offsets:
        views = [padded[:, :, pad + dy :, pad + dx :][:, :, :H, :W] for dx in offsets]
        f = model.forward_features(torch.cat(views)).float()
        each = torch.einsum("kc,bchw->bkhw", weight, f)
        rows.append(each.permute(1, 2, 3, 0))  # n h w, and the shift to the right
    cells = torch.stack(rows, 2)  # n h, the shift downwards, w, the shift to the right
    return cells.flatten(3, 4).flatten(1, 2)


# -- any of them ----------------------------------------------------------------------------------


@torch.no_grad()
def layer_weights(
    model: nn.Module, image: Float[Tensor, "1 C H W"], kind: type[nn.Module]
) -> dict[str, np.ndarray]:
    """The `weights` of every layer of a kind of `BY_WEIGHTS`: a map per head (h, H, W)."""
    maps = {}
    for name, (layer, x) in watch(model, image, kind).items():
        weights: Any = layer.weights
        heads = weights(x)
        if heads.ndim != 4 or len(heads) != 1:
            raise ValueError(
                f"view: {kind.__name__}.weights gives B H W h, a number a pixel and head, "
                f"got {tuple(heads.shape)}"
            )
        maps[name] = heads[0].permute(2, 0, 1).float().cpu().numpy()
    return maps


WHAT = {
    "linglo": "saliency: one map a head, the same for every pixel",
    "qna": "attention that each pixel receives from all windows that hold it",
    "sasa": "where one pixel looks, in its neighbourhood",
}
Place = tuple[float, float]


def maps_of(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    family: str,
    at: tuple[int, int] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, list[str]], str, Place | None]:
    """The maps of every attention layer, flat: n H W.

    Args:
        model: a network
        image: its input
        family: the kind of its attention, as `attention_of` gives it
        at: the query pixel (row, column) of `image`; SASA's layers take the middle if None

    Returns:
        maps and their labels by layer, what they show in words, and the place of the query pixel
        as shares of height and width, or None
    """
    H, W = image.shape[2:]
    if at is not None and family not in ("qna", "sasa"):
        raise ValueError("view: these maps are the same for every pixel; leave `at` out")
    pixel = at if at is not None else (H // 2, W // 2) if family == "sasa" else None
    place = None if pixel is None else ((pixel[0] + 0.5) / H, (pixel[1] + 0.5) / W)
    what = WHAT.get(family, f"weights of {family}: one map a head")
    if family == "sasa" and pixel is not None:
        maps = sasa_attention(model, image, pixel)
    elif family == "qna":
        maps = qna_summed_attention(model, image) if at is None else qna_attention(model, image, at)
        maps = {name: one.reshape(-1, *one.shape[-2:]) for name, one in maps.items()}
        what = what if at is None else "where the windows of one pixel look, query after query"
    elif family == "linglo":
        maps = linglo_saliency(model, image)
    else:
        maps = layer_weights(model, image, BY_WEIGHTS[family])
    labels = {name: labels_of(model.get_submodule(name), len(one)) for name, one in maps.items()}
    return maps, labels, what, place


def labels_of(layer: Any, maps: int) -> list[str]:
    """A label for each map of a layer: its head, or its query and head."""
    queries = getattr(layer, "queries", 1)
    heads = [f"head {i + 1}" for i in range(maps // queries)]
    if queries == 1:
        return heads
    return [f"query {q + 1}, {head}" for q in range(queries) for head in heads]


def attention_of(model: nn.Module, name: str) -> str:
    """The kind of attention that a model has: the family's name."""
    for family, kind in {**BY_WEIGHTS, **LAYERS}.items():
        if any(isinstance(module, kind) for module in model.modules()):
            return family
    raise ValueError(f"view: {name!r} has no attention to draw, of any of the three papers")


def stage_of(layer: str) -> int:
    """The stage of a layer by its name, counted from 1."""
    return int(layer.split("stages.")[1].split(".")[0]) + 1


def last_layers(layers: Iterable[str]) -> dict[str, str]:
    """The last layer of each stage, by a name for the stage. A net without stages has them all.

    QnA's last stage has learned queries only in its down-sampling layer, which the name says.
    """
    names = list(layers)
    staged = {stage_of(name): name for name in names if "stages." in name}
    if not staged:
        return {name: name for name in names}
    return {
        f"stage {stage}{', down-sampling' if '.down' in name else ''}": name
        for stage, name in staged.items()
    }


def last_of_each_stage(maps: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The maps of the last layer of each stage, by the stage's name."""
    return {stage: maps[layer] for stage, layer in last_layers(maps).items()}


def most_different(maps: Float[np.ndarray, "n H W"], count: int) -> list[int]:
    """Choose maps to draw: strong ones that differ from each other.

    Each is the map with the largest part that is orthogonal to those chosen before (QR with pivots,
    of each map divided by its mean).
    """
    rest = maps.reshape(len(maps), -1).astype(np.float64)
    rest = rest / np.maximum(rest.mean(1, keepdims=True), 1e-12)
    rest -= rest.mean(1, keepdims=True)
    indices: list[int] = []
    while len(indices) < min(count, len(maps)):
        lengths = np.linalg.norm(rest, axis=1)
        lengths[indices] = -1.0
        one = int(lengths.argmax())
        indices.append(one)
        if lengths[one] > 0:
            along = rest[one] / lengths[one]
            rest = rest - np.outer(rest @ along, along)
    return sorted(indices)
