"""Measure what a paper's text says about a network's parts, on the network and its layers.

Networks come on the meta device. What a layer does is looked at on a copy of one, with weights.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional as F

from saccade.layers.block import Block, FeedForward, SEBasicBlock
from saccade.layers.branches import DepthwiseBranch
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE, AbsolutePosition
from saccade.layers.qna import LearnedQueryAttention, QnADown
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem, Mixture
from saccade.models.backbone import Stage

Kind = TypeVar("Kind", bound=nn.Module)


def _all(model: nn.Module, kind: type[Kind]) -> list[Kind]:
    return [m for m in model.modules() if isinstance(m, kind)]


def _same(values: list[Any]) -> Any:
    """What all of them are, where they are alike."""
    (value,) = set(values)
    return value


def _with_weights(layer: Kind) -> Kind:
    """A copy that computes, drawn as it is when it is built."""
    own: Any = copy.deepcopy(layer).to_empty(device="cpu").eval()
    for module in own.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return own


def _convolutions_run(model: nn.Module) -> int:
    """Depth-wise 3x3 convolutions that one RP-CPE runs, as it is called in training."""
    layer: Any = _with_weights(_all(model, RPCPE)[0]).train()
    run: list[nn.Module] = []
    for conv in _all(layer, nn.Conv2d):
        if conv.kernel_size == (3, 3) and conv.groups == layer.dim:
            conv.register_forward_hook(lambda module, *_: run.append(module))
    layer(torch.randn(2, layer.dim, 5, 5))
    return len(run)


def _deployed(model: nn.Module) -> int:
    """Convolutions inside one RP-CPE when the network is fused."""
    layer = copy.deepcopy(_all(model, RPCPE)[0]).eval().fuse()
    return len(_all(layer, nn.Conv2d))


def _skip(model: nn.Module) -> str:
    """Whether an RP-CPE whose branches give nothing hands on its input, and not zeros."""
    layer: Any = _with_weights(_all(model, RPCPE)[0])
    for branch in _all(layer, DepthwiseBranch):
        nn.init.zeros_(branch.conv.weight)
    x = torch.randn(2, layer.dim, 5, 5)
    with torch.no_grad():
        y = layer(x)
    if not torch.equal(y, torch.zeros_like(x)):
        return "yes" if torch.allclose(y, x) else "another"
    return "no"


def _normalised(model: nn.Module) -> str:
    """Whether the scale of a branch's weights is of no consequence, as it is called in training."""
    layer: Any = _with_weights(_all(model, RPCPE)[0]).train()
    x = torch.randn(4, layer.dim, 5, 5)
    with torch.no_grad():
        before = layer(x)
        for branch in _all(layer, DepthwiseBranch):
            branch.conv.weight.mul_(7)
        after = layer(x)
    return "yes" if torch.allclose(before, after, atol=1e-2) else "no"


def _attention(model: nn.Module) -> str:
    """What mixes the positions of a LinGlo's blocks."""
    kinds = {"key-only": KeyOnlyAttention, "dot-product": DotProductAttention}
    return ", ".join(word for word, kind in kinds.items() if _all(model, kind))


def _way_down(model: nn.Module) -> str:
    """What a map becomes smaller by: convolutions over all channels, or patches side by side."""
    ways = [cast(Stage, stage).down for stage in cast(Any, model).backbone.stages]
    convs: list[Any] = [conv for way in ways for conv in _all(way, nn.Conv2d)]
    if any(conv.groups > 1 or set(conv.dilation) != {1} for conv in convs):
        return "another"
    apart = _same([conv.kernel_size == conv.stride for conv in convs])
    return "patch embeddings" if apart else "regular convolutions"


def _squeezed(model: nn.Module) -> str:
    """The stages that are made of convolution blocks with SE alone."""
    stages = [cast(Stage, stage).blocks for stage in cast(Any, model).backbone.stages]
    alone = [all(isinstance(block, SEBasicBlock) for block in blocks) for blocks in stages]
    return ", ".join(str(i) for i, only in enumerate(alone, 1) if only)


def _activation(model: nn.Module) -> str:
    return _same([type(feed.act).__name__ for feed in _all(model, FeedForward)])


def _positions(model: nn.Module) -> str:
    """The encodings of position that a network has."""
    kinds = {"RP-CPE": RPCPE, "absolute": AbsolutePosition}
    return ", ".join(word for word, kind in kinds.items() if _all(model, kind))


def _norms_where_the_size_changes(model: nn.Module) -> str:
    """What follows the convolution of every down-sampling layer."""
    ways = [cast(Stage, stage).down for stage in cast(Any, model).backbone.stages]
    norms = [_all(way, nn.LayerNorm) + _all(way, nn.GroupNorm) for way in ways]
    return _same([", ".join(type(n).__name__.removesuffix("2d") for n in each) for each in norms])


def _expansion(model: nn.Module) -> int:
    """Hidden channels of the feed-forwards, over those of the map."""
    return _same([m.widen.out_features // m.widen.in_features for m in _all(model, FeedForward)])


def _norm_first(model: nn.Module) -> str:
    """Whether a block adds to x what it makes of a norm of x: then it is x where that is zero."""
    block: Any = _with_weights(_all(model, Block)[0])
    x = 3 + torch.randn(1, block.mix_norm.weight.shape[0], 7, 7)
    for norm in (block.mix_norm, block.ffn_norm):
        nn.init.zeros_(norm.weight)
        nn.init.zeros_(norm.bias)
    with torch.no_grad():
        rest = block(x) - x  # of biases alone, so the same at every pixel but near the border
    flat = rest[..., 3, 3] - rest[..., 3, 4]
    return "yes" if flat.abs().max() < 1e-5 else "no"


def _queries_are_unit(model: nn.Module) -> str:
    """Whether the length of the queries is of no consequence, in a layer of each stage."""
    for layer in {m.query.shape: m for m in _all(model, LearnedQueryAttention)}.values():
        own: Any = _with_weights(layer)
        x = torch.randn(1, 6, 6, own.key.in_features)
        with torch.no_grad():
            before = own(x)
            own.query *= 3.0
            after = own(x)
            own.query.copy_(torch.randn_like(own.query))
            other = own(x)
        if not torch.allclose(before, after, atol=1e-5) or torch.allclose(before, other, atol=1e-5):
            return "no"
    return "yes"


def _biases(model: nn.Module) -> str:
    """Learned biases of places: of how many queries, heads and places each layer has its own."""
    layers = _all(model, LearnedQueryAttention)
    own = all(m.rpe.shape == (m.window, m.window, m.queries, m.heads) for m in layers)
    return "each query and head" if own else "shared"


def _first_of_stage_3(model: nn.Module) -> str:
    block: Any = cast(Stage, cast(Any, model).backbone.stages[2]).blocks[0]
    return "QnA" if isinstance(block.mix, LearnedQueryAttention) else "SA"


def _skips(model: nn.Module) -> str:
    """The skip beside QnA where it halves the map."""
    skips: list[Any] = [way.skip for way in _all(model, QnADown)]
    return _same([f"{'x'.join(map(str, s.kernel_size))} conv, stride {s.stride[0]}" for s in skips])


def _head(model: nn.Module) -> str:
    """What makes one vector of the last map: by a map whose mean and norm are known."""
    whole: Any = model
    norm = _with_weights(cast(nn.Module, whole.backbone.norm))
    x = torch.randn(2, whole.backbone.widths[-1], 3, 3)
    with torch.no_grad():
        normed = norm(x)
    channels = F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2], eps=1e-6).permute(0, 3, 1, 2)
    return "LayerNorm" if torch.allclose(normed, channels, atol=1e-4) else "another"


def _extent(model: nn.Module) -> int:
    """Pixels on a side that change a pixel's output, by their gradient, of every size of layer."""
    sides = []
    for layer in {m.window: m for m in _all(model, StandAloneAttention)}.values():
        own: Any = _with_weights(layer)
        own.stride = 1
        x = torch.randn(1, own.value.weight.shape[1], 15, 15, requires_grad=True)
        (gradient,) = torch.autograd.grad(own(x)[0, :, 7, 7].square().sum(), x)
        rows = gradient[0].abs().amax((0, 2)).nonzero()
        sides.append(int(rows.max() - rows.min()) + 1)
    return _same(sides)


def _attention_heads(model: nn.Module) -> int:
    return _same([m.heads for m in _all(model, StandAloneAttention)])


def _beyond(model: nn.Module) -> str:
    """The share of the softmax that places outside the map take, by a mean of equal values."""
    shares = set()
    for layer in {m.window: m for m in _all(model, StandAloneAttention)}.values():
        own: Any = _with_weights(layer)
        own.stride = 1
        with torch.no_grad():
            y = own(torch.ones(1, own.value.weight.shape[1], 15, 15))
        corner, centre = y[0, :, 0, 0], y[0, :, 7, 7]
        shares.add("nothing" if torch.allclose(corner, centre, atol=1e-5) else "a share")
    return _same(list(shares))


def _stem_window(model: nn.Module) -> str:
    """The pixels that one output of the stem's attention sees, by their gradient."""
    (stem,) = _all(model, AttentionStem)
    own: Any = _with_weights(stem)
    x = torch.randn(1, own.query.weight.shape[1], 16, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(own(x)[0, :, 1, 1].square().sum(), x)
    reach = gradient[0].abs().amax(0) > 0
    return f"{int(reach.any(1).sum())}x{int(reach.any(0).sum())}"


def _stem_heads(model: nn.Module) -> int:
    (stem,) = _all(model, AttentionStem)
    return stem.heads


def _shares(model: nn.Module) -> str:
    """Whether the shares p(a, b, m) are convex, and know of no head."""
    (mixture,) = _all(model, Mixture)
    shares: Any = _with_weights(mixture).shares()
    convex = bool((shares >= 0).all()) and torch.allclose(shares.sum(-1), torch.ones(()))
    places = shares.shape == (mixture.side, mixture.side, len(mixture.weight))
    return "yes" if convex and places else "no"


_MEASURES: dict[str, Callable[[nn.Module], Any]] = {
    "branches of RP-CPE": _convolutions_run,
    "branches of RP-CPE, deployed": _deployed,
    "skip beside the branches": _skip,
    "branches are normalised": _normalised,
    "attention": _attention,
    "kind of down-sampling": _way_down,
    "stages of convolution blocks with SE": _squeezed,
    "activation": _activation,
    "positions": _positions,
    "norm where the size changes": _norms_where_the_size_changes,
    "expansion": _expansion,
    "norm before attention and FFN": _norm_first,
    "queries are unit vectors": _queries_are_unit,
    "position biases of their own": _biases,
    "first block of stage 3": _first_of_stage_3,
    "skip of down-sampling": _skips,
    "before the pooling": _head,
    "attention's k": _extent,
    "attention's heads": _attention_heads,
    "places outside the map take": _beyond,
    "stem's window": _stem_window,
    "stem's heads": _stem_heads,
    "mixtures are shared by the stem's heads": _shares,
}


def _repeatable(measure: Callable[[nn.Module], Any], model: nn.Module) -> Any:
    """Seed the random numbers inside, and restore the generators afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return measure(model)


MEASURES = {what: partial(_repeatable, measure) for what, measure in _MEASURES.items()}
