"""QnA beside its peers: the same aggregation computed in other ways, and other ways to look around.

    walked     our own form without C++
    unrolled   the equations as they stand, attention maps and all
    convolved  sums over windows as depth-wise convolutions: the authors' form
    sasa       every pixel its own query (SASA)
    unfold     the same with its windows copied out: local attention as it is usually written
    window     attention inside windows of 7 x 7 (or k x k) that tile the map
    conv       a depth-wise k x k convolution (in the layer, between two pointwise ones)
    global     attention to the whole map

The first four, `qna` among them, compute one function and are measured by its work.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.bench import sasa
from saccade.bench.peer import Inputs, Peer, Shape, count, on_meta
from saccade.bench.plain import depthwise, everywhere, random_tensor, separable
from saccade.layers.dot import DotProductAttention
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.window import WindowAttention
from saccade.ops import qna as ops
from saccade.ops.window import tiled, untiled

Aggregate = Callable[..., Tensor]


def peers(
    shape: Shape,
    *,
    layer: bool = False,
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    window: int = 3,
    queries: int = 2,
    stride: int = 1,
) -> dict[str, Peer]:
    """The operator (of scores, values and tables), or the layer (of a map) with its projections."""
    B, H, W, C, heads = shape
    where: dict[str, Any] = {"train": train, "dtype": dtype, "device": device}
    new = partial(LearnedQueryAttention, C, heads, window, stride, queries)
    attention = new().to(device, dtype)  # refuses what cannot be
    x, q, k = (random_tensor(B, H, W, C, **where) for _ in range(3))
    s = random_tensor(B, H, W, queries, heads, **where)
    v = random_tensor(B, H, W, heads, C // heads, **where)
    inputs: Inputs = (x,) if layer else (s, v, attention.rpe, attention.scale)
    how = {"stride": stride, "padding": attention.padding}

    def way(f: Aggregate, of: LearnedQueryAttention = attention) -> Aggregate:
        return _QnaLayer(of, partial(f, **how)) if layer else partial(f, **how)

    with torch.device("meta"):
        stand_in = new().to(dtype)
    work = count(way(ops.aggregate, stand_in), on_meta(inputs), train)
    by_name = {
        "qna": Peer(way(ops.aggregate), inputs, work),
        "walked": Peer(way(partial(ops.aggregate, backend="walked")), inputs, work),
        "unrolled": Peer(way(partial(ops.aggregate, backend="unrolled")), inputs, work),
        "convolved": Peer(way(partial(ops.aggregate, backend="convolved")), inputs, work),
    }
    nchw, side = random_tensor(B, C, H, W, **where), max(window, 7)
    if layer:
        by_name["window"] = Peer(WindowAttention(C, heads, side).to(device, dtype), (x,))
        by_name["conv"] = Peer(separable(C, window, stride).to(device, dtype), (nchw,))
        by_name["global"] = Peer(DotProductAttention(C, heads).to(device, dtype), (x,))
    else:
        three = q, k, x
        by_name["window"] = Peer(partial(inside_windows, heads=heads, side=side), three)
        by_name["conv"] = Peer(depthwise(C, window, stride).to(device, dtype), (nchw,))
        three = tuple(t.detach().permute(0, 3, 1, 2).requires_grad_(train) for t in three)
        by_name["global"] = Peer(partial(everywhere, heads=heads), three)
    for name in ("sasa", "unfold"):
        by_name[name] = _peer_of_sasa(name, shape, layer=layer, window=window, **where)
    if stride > 1:
        for name in ("window", "global", "sasa", "unfold"):
            by_name[name] = replace(by_name[name], absent=f"it has no stride, got stride {stride}")
    return by_name


def _peer_of_sasa(name: str, shape: Shape, **how: Any) -> Peer:
    try:
        return sasa.peers(shape, **how)[name]
    except ValueError as error:  # such as an odd head width
        return Peer(torch.add, (), absent=str(error))


class _QnaLayer(nn.Module):
    """QnA's layer, with its aggregation computed by `f`."""

    def __init__(self, layer: LearnedQueryAttention, f: Aggregate):
        super().__init__()
        self.layer, self.f = layer, f

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B Ho Wo D"]:
        s, v = self.layer.scores(x), self.layer.values(x)
        return self.layer.mix(self.f(s, v, self.layer.rpe, self.layer.scale).flatten(3))


def inside_windows(
    q: Float[Tensor, "B H W C"],
    k: Float[Tensor, "B H W C"],
    v: Float[Tensor, "B H W C"],
    heads: int,
    side: int,
) -> Float[Tensor, "B H W C"]:
    """Attention among the pixels of each window; those that fill up the last ones stay in."""
    H, W = q.shape[1:3]
    h, w = min(side, H), min(side, W)
    by_head = (tiled(x, h, w).unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(*by_head).transpose(1, 2).flatten(2)
    return untiled(y, H, W, h, w)
