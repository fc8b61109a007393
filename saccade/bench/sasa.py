"""SASA beside its peers: the same windows computed in other ways, and other ways to look around.

    tiled    our own form without C++
    halo     blocks of queries against the keys around them, by scaled_dot_product_attention
    shifts   a loop over k^2 shifted views of the map
    unfold   windows copied out, positions added to every key: the form found in public code
    flex     FlexAttention, compiled, with q . r looked up by offset
    conv     a depth-wise k x k convolution (in the layer, between two pointwise ones)
    global   attention to the whole map, without positions

All but the last two compute the function of `saccade.ops.sasa`, so they are measured by its work.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, no_type_check

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.bench.peer import Inputs, Peer, Shape, compiled_quietly, count, on_meta
from saccade.bench.plain import depthwise, everywhere, random_tensor, separable
from saccade.layers.dot import DotProductAttention
from saccade.layers.sasa import StandAloneAttention
from saccade.ops import sasa as ops
from saccade.ops.native import build

OUT = -1e30  # the logit of a masked key; finite, so that a row of masked keys alone gives no NaN
SIDE = 8  # of a block of queries


def peers(
    shape: Shape,
    *,
    layer: bool = False,
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    window: int = 7,
    border: str = "zero",
) -> dict[str, Peer]:
    """The operator (of q, k, v and positions), or the layer (of a map) with its projections."""
    B, H, W, C, heads = shape
    how: dict[str, Any] = {"heads": heads, "window": window, "border": border}
    make = partial(random_tensor, train=train, dtype=dtype, device=device)
    attention = StandAloneAttention(C, **how).to(device, dtype)  # refuses what cannot be
    x, q, k, v = (make(B, C, H, W) for _ in range(4))
    inputs: Inputs = (x,) if layer else (q, k, v, attention.row, attention.col)

    def way(f: Callable[..., Tensor], of: StandAloneAttention = attention) -> Callable[..., Tensor]:
        return _SasaLayer(of, partial(f, **how)) if layer else partial(f, **how)

    with torch.device("meta"):
        stand_in = StandAloneAttention(C, **how).to(dtype)
    work = count(way(ops.local_attention, stand_in), on_meta(inputs), train)
    by_name = {
        "sasa": Peer(way(ops.local_attention), inputs, work),
        "tiled": Peer(way(partial(ops.local_attention, backend="tiled")), inputs, work),
        "halo": Peer(way(halo), inputs, work),
        "shifts": Peer(way(shifts), inputs, work),
        "unfold": Peer(way(unfold), inputs, work),
        "flex": Peer(way(flex), inputs, work, ready=True),
    }
    copies = (6 if train else 4) * window**2  # of the map, at the same time
    by_name["unfold"] = replace(by_name["unfold"], needs=copies * q.nbytes)
    table = 16 * (H * W) ** 2  # bytes to find out once which blocks of keys a block may see
    by_name["flex"] = replace(by_name["flex"], needs=table, absent=_no_flex(train, device))
    if layer:
        whole = DotProductAttention(C, heads).to(device, dtype)
        by_name["conv"] = Peer(separable(C, window).to(device, dtype), (x,))
        by_name["global"] = Peer(whole, (make(B, H * W, C),))
    else:
        by_name["conv"] = Peer(depthwise(C, window).to(device, dtype), (v,))
        by_name["global"] = Peer(partial(everywhere, heads=heads), (q, k, v))
    return by_name


class _SasaLayer(nn.Module):
    """SASA's layer, with its operator computed by `f`."""

    def __init__(self, layer: StandAloneAttention, f: Callable[..., Tensor]):
        super().__init__()
        self.layer, self.f = layer, f

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        return self.f(*self.layer.project(x), self.layer.row, self.layer.col)


# -- the same function, in other ways -------------------------------------------------------------


def unfold(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"],
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"],
    col: Float[Tensor, "r k half"],
    heads: int,
    window: int,
    border: str,
) -> Float[Tensor, "B C H W"]:
    """Every window copied out, and every key of every window moved by its position."""
    B, C, H, W = q.shape
    ks, vs = (_padded(x, window).unfold(2, window, 1).unfold(3, window, 1) for x in (k, v))
    ks, vs = (x.reshape(B, heads, C // heads, H, W, window, window) for x in (ks, vs))
    by_row, by_col = ks.chunk(2, 2)
    by_row = by_row + row.mT[:, :, None, None, :, None]
    by_col = by_col + col.mT[:, :, None, None, None, :]
    ks = torch.cat((by_row, by_col), 2).flatten(5)  # B h d H W k^2
    s = (q.reshape(B, heads, -1, H, W, 1) * ks).sum(2)
    if border == "mask":
        s = s + _outside(H, W, window, q.dtype, q.device).permute(2, 3, 0, 1).flatten(2)
    a = s.softmax(-1)
    return torch.einsum("bhyxk,bhcyxk->bhcyx", a, vs.flatten(5)).reshape(B, C, H, W)


def shifts(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"],
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"],
    col: Float[Tensor, "r k half"],
    heads: int,
    window: int,
    border: str,
) -> Float[Tensor, "B C H W"]:
    """One offset after the other: the map times itself, moved."""
    H, W = q.shape[2:]
    qs = q.unflatten(1, (heads, -1))  # B h d H W
    ks, vs = (_padded(x, window).unflatten(1, (heads, -1)) for x in (k, v))
    places = [(a, b) for a in range(window) for b in range(window)]
    content = [(qs * ks[..., a : a + H, b : b + W]).sum(2) for a, b in places]
    first, second = qs.chunk(2, 2)
    down, along = (
        torch.einsum("bhcyx,rkc->bhkyx" if len(t) == 1 else "bhcyx,hkc->bhkyx", part, t)
        for part, t in ((first, row), (second, col))
    )
    s = torch.stack(content, 2).unflatten(2, (window, window))
    s = s + down.unsqueeze(3) + along.unsqueeze(2)
    if border == "mask":
        s = s + _outside(H, W, window, q.dtype, q.device)
    a = s.flatten(2, 3).softmax(2).unsqueeze(2).unbind(3)  # k^2 of B h 1 H W
    y = a[0] * vs[..., :H, :W]
    for share, (i, j) in zip(a[1:], places[1:], strict=True):
        y = y + share * vs[..., i : i + H, j : j + W]
    return y.flatten(1, 2)


def halo(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"],
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"],
    col: Float[Tensor, "r k half"],
    heads: int,
    window: int,
    border: str,
) -> Float[Tensor, "B C H W"]:
    """Blocks of queries against the keys around them; what is too far away is masked."""
    (B, C, H, W), d = q.shape, q.shape[1] // heads
    ny, nx, reach = math.ceil(H / SIDE), math.ceil(W / SIDE), SIDE + window - 1
    fill = (0, nx * SIDE - W, 0, ny * SIDE - H)

    def blocks(x: Tensor, side: int) -> Tensor:
        """B ny nx h side side d, one block every SIDE pixels."""
        x = x.unfold(2, side, SIDE).unfold(3, side, SIDE)
        return x.unflatten(1, (heads, d)).permute(0, 3, 4, 1, 5, 6, 2)

    qs = blocks(F.pad(q, fill), SIDE)
    ks, vs = (blocks(F.pad(_padded(x, window), fill), reach).flatten(4, 5) for x in (k, v))
    offset = torch.arange(reach, device=q.device) - torch.arange(SIDE, device=q.device)[:, None]
    in_window = (offset >= 0) & (offset < window)  # SIDE reach
    offset = offset.clamp(0, window - 1)
    down = qs[..., : d // 2] @ row.mT[:, None]  # B ny nx h SIDE SIDE k
    along = qs[..., d // 2 :] @ col.mT[:, None]
    spread = *qs.shape[:-1], reach
    down, along = (
        down.gather(6, offset[:, None].expand(spread)),
        along.gather(6, offset.expand(spread)),
    )
    bias = down.unsqueeze(7) + along.unsqueeze(6)  # B ny nx h SIDE SIDE reach reach
    bias = bias.masked_fill(~(in_window[:, None, :, None] & in_window[:, None]), OUT)
    if border == "mask":
        inside = F.pad(_padded(q.new_ones(1, 1, H, W), window), fill)
        inside = inside.unfold(2, reach, SIDE).unfold(3, reach, SIDE)[0, 0]  # ny nx reach reach
        bias = bias.masked_fill(inside[:, :, None, None, None] == 0, OUT)
    y = F.scaled_dot_product_attention(
        *(x.flatten(0, 2) for x in (qs.flatten(4, 5), ks, vs)),
        attn_mask=bias.flatten(6).flatten(4, 5).flatten(0, 2),
        scale=1.0,
    )
    y = y.reshape(B, ny, nx, heads, SIDE, SIDE, d).permute(0, 3, 6, 1, 4, 2, 5)
    return y.reshape(B, C, ny * SIDE, nx * SIDE)[:, :, :H, :W]


def flex(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"],
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"],
    col: Float[Tensor, "r k half"],
    heads: int,
    window: int,
    border: str,
) -> Float[Tensor, "B C H W"]:
    """FlexAttention over the map's pixels, those of the border among the keys if they count.

    q . r is computed outside of what is compiled: inside, torch 2.15 gets it wrong on CPU.
    """
    H, W = q.shape[2:]
    if border == "zero":
        k, v = _padded(k, window), _padded(v, window)
    qs, ks, vs = (x.unflatten(1, (heads, -1)).flatten(3).mT.contiguous() for x in (q, k, v))
    first, second = qs.chunk(2, 3)
    down, along = first @ row.mT, second @ col.mT  # B h N k
    attend = _compiled_flex(H, W, *k.shape[2:], window, str(q.device))
    return attend(qs, ks, vs, down, along).mT.reshape(q.shape)


@lru_cache(maxsize=8)
def _compiled_flex(H: int, W: int, key_H: int, key_W: int, window: int, device: str) -> Callable:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    above, left = (window // 2 - (outer - inner) // 2 for outer, inner in ((key_H, H), (key_W, W)))

    @no_type_check  # torch.compile would trace into a wrapper that checks shapes
    def offsets(n: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return m // key_W - n // W + above, m % key_W - n % W + left

    @no_type_check
    def sees(b: Any, h: Any, n: Tensor, m: Tensor) -> Tensor:
        i, j = offsets(n, m)
        return (i >= 0) & (i < window) & (j >= 0) & (j < window)

    blocks = create_block_mask(sees, None, None, H * W, key_H * key_W, device=device)

    @no_type_check
    def attend(q: Tensor, k: Tensor, v: Tensor, down: Tensor, along: Tensor) -> Tensor:
        @no_type_check
        def placed(score: Tensor, b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
            i, j = (o.clamp(0, window - 1) for o in offsets(n, m))
            return score + down[b, h, n, i] + along[b, h, n, j]

        return flex_attention(q, k, v, score_mod=placed, block_mask=blocks, scale=1.0)

    return compiled_quietly(attend, dynamic=False)


def _no_flex(train: bool, device: str) -> str:
    if device != "cpu":
        return ""
    if train:
        return "FlexAttention has no backward on CPU"
    try:
        build.compiler()
    except build.NoCompilerError as error:
        return f"FlexAttention must be compiled, and there is {error}"
    return ""


def _padded(x: Float[Tensor, "B C H W"], window: int) -> Float[Tensor, "B C H2 W2"]:
    return F.pad(x, (window // 2,) * 4)


@lru_cache(maxsize=8)
def _outside(
    H: int, W: int, window: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "k k H W"]:
    """OUT where an offset leads off the map, else 0."""
    inside = _padded(torch.ones(1, 1, H, W, device=device), window)[0, 0]
    off: Bool[Tensor, "k k H W"] = inside.unfold(0, H, 1).unfold(1, W, 1) == 0
    return torch.zeros(off.shape, dtype=dtype, device=device).masked_fill(off, OUT)
