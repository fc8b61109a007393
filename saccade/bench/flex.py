"""Local attention through any masked attention kernel: a second route, by FlexAttention on GPU.

General kernels know q . k and a mask, not a logit that depends on the offset between two pixels.
But inside a k x k window the row of a key modulo k *names* its row offset, and so with columns. So

    k' = concat(k, onehot(row mod k), onehot(column mod k))
    q' = concat(q, q . row, q . col)     each rolled, so that slot y mod k holds the offset of row y

have q' . k' = q . k + q . r for every key of the window, exactly. No tensor of biases exists, the
gradients of the tables are sums of plain matrix products, hence deterministic, and wide heads run
on tensor cores, which `saccade.ops.triton.sasa` does not use. The price: 2 k more channels, and in
bf16 and fp16 a rounding of q . r to the dtype of q.

border="zero" is a map padded with zeros, whose outside pixels are keys like all others.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.precision import no_autocast

Sees = Callable[[Tensor, Tensor], Tensor]  # whether query n sees key m


def local_attention(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"] | None,
    v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"] | None,
    col: Float[Tensor, "r k half"] | None,
    heads: int,
    window: int,
    border: str = "zero",
    kernel: str = "flex",
) -> Float[Tensor, "B C H W"]:
    """As `saccade.ops.triton.sasa.local_attention`, by kernel="flex" or "dense" (N x N scores)."""
    (B, C, H, W), dtype = q.shape, q.dtype
    pad = window // 2 if border == "zero" else 0
    size = H + 2 * pad, W + 2 * pad
    with no_autocast(q.device):
        queries, keys = _by_head(q, heads), None if k is None else _by_head(_padded(k, pad), heads)
        if row is not None and col is not None:
            queries, keys = _with_positions(queries, keys, row, col, (H, W), size, window)
        elif keys is None:
            queries, keys = (x.new_zeros(B, heads, n, 16)
                             for x, n in ((q, H * W), (q, size[0] * size[1])))  # fmt: skip
        values = _by_head(_padded(v, pad), heads).to(dtype)
        attend = _flex if kernel == "flex" else _dense
        y = attend(queries.to(dtype), keys.to(dtype), values, (H, W), size, window)
    return y.mT.reshape(B, C, H, W)


def _by_head(x: Float[Tensor, "B C H W"], heads: int) -> Float[Tensor, "B h N d"]:
    return x.unflatten(1, (heads, x.shape[1] // heads)).flatten(3).mT


def _padded(x: Float[Tensor, "B C H W"], pad: int) -> Float[Tensor, "B C H2 W2"]:
    return F.pad(x, (pad,) * 4) if pad else x


def _with_positions(
    q: Float[Tensor, "B h N d"],
    k: Float[Tensor, "B h M d"] | None,
    row: Float[Tensor, "r k half"],
    col: Float[Tensor, "r k half"],
    size: tuple[int, int],
    key_size: tuple[int, int],
    window: int,
) -> tuple[Float[Tensor, "B h N e"], Float[Tensor, "B h M e"]]:
    """q' and k' of the equation; without content their first part is left out."""
    B, h = q.shape[:2]
    pixels, key_pixels = (_coordinates(*s, q.device) for s in (size, key_size))
    first, second = q.chunk(2, dim=3)
    parts_q, parts_k = ([q], [k]) if k is not None else ([], [])
    for x, table, at, key_at, shift in zip(
        (first, second), (row, col), pixels, key_pixels, _shifts(size, key_size, window),
        strict=True,
    ):  # fmt: skip
        # A key in row y has offset y - (i + shift): slot y mod k is asked for y = i + shift + o.
        slot = torch.arange(window, device=q.device)
        offset = (slot - (at[:, None] + shift)) % window  # N k
        logits = x @ table.to(x.dtype).mT  # B h N k
        parts_q.append(logits.gather(3, offset.expand(B, h, -1, -1)))
        parts_k.append(F.one_hot(key_at % window, window).to(q.dtype).expand(B, h, -1, -1))
    return torch.cat(parts_q, 3), torch.cat(parts_k, 3)


def _coordinates(H: int, W: int, device: torch.device) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"]]:
    n = torch.arange(H * W, device=device)
    return n // W, n % W


def _shifts(size: tuple[int, int], key_size: tuple[int, int], window: int) -> tuple[int, int]:
    """From a pixel to the first row (column) of its window, counted in the keys' map."""
    (H, W), (key_H, key_W) = size, key_size
    return (key_H - H) // 2 - window // 2, (key_W - W) // 2 - window // 2


def _sees(size: tuple[int, int], key_size: tuple[int, int], window: int) -> Sees:
    (_, W), (_, key_W) = size, key_size
    down, right = _shifts(size, key_size, window)

    def sees(n: Tensor, m: Tensor) -> Tensor:
        a, b = m // key_W - n // W - down, m % key_W - n % W - right
        return (a >= 0) & (a < window) & (b >= 0) & (b < window)

    return sees


# -- the kernels ----------------------------------------------------------------------------------


def _dense(
    q: Float[Tensor, "B h N e"],
    k: Float[Tensor, "B h M e"],
    v: Float[Tensor, "B h M d"],
    size: tuple[int, int],
    key_size: tuple[int, int],
    window: int,
) -> Float[Tensor, "B h N d"]:
    """By scaled_dot_product_attention under a full mask: for small maps, and to compare with."""
    n, m = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    mask: Bool[Tensor, "N M"] = _sees(size, key_size, window)(n[:, None], m)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


def _flex(
    q: Float[Tensor, "B h N e"],
    k: Float[Tensor, "B h M e"],
    v: Float[Tensor, "B h M d"],
    size: tuple[int, int],
    key_size: tuple[int, int],
    window: int,
) -> Float[Tensor, "B h N d"]:
    """By FlexAttention: blocks of keys that no window of a block of queries reaches are skipped."""
    from torch.nn.attention.flex_attention import flex_attention

    blocks = _blocks(size, key_size, window, q.device)
    compiled = q.is_cuda and not torch.compiler.is_compiling()
    attend: Callable = _compiled(flex_attention) if compiled else flex_attention
    return attend(q, k, v, block_mask=blocks, scale=1.0)


@lru_cache(maxsize=1)
def _compiled(attend: Callable) -> Callable:
    return torch.compile(attend)


@lru_cache(maxsize=32)
def _blocks(
    size: tuple[int, int], key_size: tuple[int, int], window: int, device: torch.device
) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    sees = _sees(size, key_size, window)
    return create_block_mask(
        lambda b, h, n, m: sees(n, m), None, None,
        size[0] * size[1], key_size[0] * key_size[1], device=str(device),
    )  # fmt: skip
