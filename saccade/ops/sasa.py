"""Stand-alone self-attention (SASA, eq. 3): each pixel attends to the k x k pixels around it.

    y_ij = sum over ab of  softmax_ab(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab
    r_uv = concat(row_u, col_v)

in every head by itself. Head n has channels n d to (n+1) d; `row` is multiplied with the first half
of them, `col` with the second. There is no 1/sqrt(d) in the equation. Where the window reaches
beyond the map, border="zero" includes those places in the softmax with key and value zero (logit
q . r, as zero padding does), and border="mask" leaves them out.

Forms: `shifted`, the reference, multiplies the map with shifted copies of itself. `unfolded` is the
equation as printed and copies all windows: k^2 times the memory of its input. `blocked`
(saccade.ops.plain) is small matrix products for all blocks of the map at once, for portable graphs.
`tiled` computes such products part by part. `native` is the C++ kernel, by far the fastest on CPU,
`triton` the one for GPUs.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.native.sasa import NATIVE
from saccade.ops.operator import Operator
from saccade.ops.plain.sasa import TILED
from saccade.ops.plain.sasa_blocks import blocked
from saccade.ops.precision import no_autocast, wide
from saccade.ops.triton.sasa import TRITON

BORDERS = ("zero", "mask")


def local_attention(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, heads: int,
    window: int, border: str = "zero", backend: str = "auto",
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """Attend within k x k windows.

    Without `k` there is no content term, without `row` and `col` no position term. The tables hold
    one entry per offset, -(k//2) first, and are shared by the heads (r = 1) or their own (r = h).
    """
    return LOCAL_ATTENTION(q, k, v, row, col, heads, window, border, backend=backend)


fx.wrap("local_attention")  # one node to torch.fx


def unfolded(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, heads: int,
    window: int, border: str = "zero",
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """The equation as printed, window by window: the reference, and what FLOPs are counted on."""
    B, C, H, W = q.shape
    with no_autocast(q.device):
        dtype = wide(q.dtype)
        qs = q.to(dtype).reshape(B, heads, C // heads, H * W).mT  # B h n d
        ks = None if k is None else _windows(k.to(dtype), heads, window)
        a = _softmax(qs, ks, row, col, window, _taking_part(H, W, window, border, q.device))
        y = a[..., None, :] @ _windows(v.to(dtype), heads, window).mT  # B h n 1 d
    return y.squeeze(3).mT.reshape(B, C, H, W).to(q.dtype)


def shifted(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, heads: int,
    window: int, border: str = "zero",
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """The equation, one row of offsets at a time: k times the memory of its input."""
    (H, W), d, offsets = q.shape[2:], q.shape[1] // heads, range(window)
    with no_autocast(q.device):
        qs = q.to(wide(q.dtype)).unflatten(1, (heads, d))  # B h d H W
        s = qs.new_zeros(1, 1, window, window, 1, 1)
        if k is not None:
            ks = _slid(k.to(qs.dtype), heads, window)
            rows = [(qs.unsqueeze(3) * ks.narrow(4, a, H)).sum(2) for a in offsets]
            s = s + torch.cat(rows, 2).unflatten(2, (window, window))  # B h k k H W
        if row is not None and col is not None:
            down, along = (
                (table.to(qs.dtype) @ part.flatten(3)).unflatten(3, (H, W))
                for table, part in zip((row, col), qs.split(d // 2, 2), strict=True)
            )
            s = s + down.unsqueeze(3) + along.unsqueeze(2)
        if border == "mask":
            s = s.masked_fill(_off(H, window, q.device)[:, None, :, None], float("-inf"))
            s = s.masked_fill(_off(W, window, q.device)[:, None], float("-inf"))
        shares = s.flatten(2, 3).softmax(2).unsqueeze(2).split(window, 3)  # B h 1 k H W each
        vs = _slid(v.to(qs.dtype), heads, window)
        terms = ((share * vs.narrow(4, a, H)).sum(3) for a, share in enumerate(shares))
        y = functools.reduce(torch.add, terms)
    return y.flatten(1, 2).to(q.dtype)


def local_weights(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None,
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, heads: int,
    window: int, border: str = "zero", at: Sequence[tuple[int, int]] | None = None,
) -> Float[Tensor, "B h n k k"]:  # fmt: skip
    """What the softmax gives: of n pixels (i, j), or of all of them in reading order."""
    LOCAL_ATTENTION.check(q, k, q, row, col, heads, window, border)
    (C, H, W), device = q.shape[1:], q.device
    if at is None:
        at = [(i, j) for i in range(H) for j in range(W)]
    for i, j in at:
        if not (0 <= i < H and 0 <= j < W):
            raise ValueError(f"local_weights: the map has {H}x{W} pixels, got pixel ({i}, {j})")
    with no_autocast(device):
        i, j = torch.tensor(at, device=device).reshape(-1, 2).unbind(1)
        qs = q.to(wide(q.dtype))[:, :, i, j].unflatten(1, (heads, C // heads)).mT
        ks = None if k is None else _windows_at(k.to(qs.dtype), i, j, heads, window)
        takes_part = _taking_part(H, W, window, border, device)[i * W + j]
        a = _softmax(qs, ks, row, col, window, takes_part)
    return a.unflatten(3, (window, window))


# -- the parts of the equation --------------------------------------------------------------------


def _softmax(
    q: Float[Tensor, "B h n d"], k: Float[Tensor, "B h n d kk"] | None,
    row: Float[Tensor, "r k half"] | None, col: Float[Tensor, "r k half"] | None, window: int,
    takes_part: Bool[Tensor, "n kk"],
) -> Float[Tensor, "B h n kk"]:  # fmt: skip
    s = q.new_zeros(*q.shape[:3], window**2)
    if k is not None:
        s = s + (q[..., None, :] @ k).squeeze(3)
    if row is not None and col is not None:
        s = s + q @ _offsets(row, col).to(q.dtype)
    return s.masked_fill(~takes_part, float("-inf")).softmax(-1)


def _offsets(
    row: Float[Tensor, "r k half"], col: Float[Tensor, "r k half"]
) -> Float[Tensor, "r d kk"]:
    """r_uv for every offset, in reading order."""
    k = row.shape[1]
    r = torch.cat((row[:, :, None].expand(-1, k, k, -1), col[:, None].expand(-1, k, k, -1)), 3)
    return r.flatten(1, 2).mT


def _windows(x: Float[Tensor, "B C H W"], heads: int, window: int) -> Float[Tensor, "B h n d kk"]:
    """The neighbourhood of every pixel, zeros outside the map."""
    d = x.shape[1] // heads
    x = F.unfold(x, window, padding=window // 2)
    return x.unflatten(1, (heads, d, window**2)).permute(0, 1, 4, 2, 3)


def _windows_at(
    x: Float[Tensor, "B C H W"], i: Tensor, j: Tensor, heads: int, window: int
) -> Float[Tensor, "B h n d kk"]:
    """The neighbourhood of some pixels."""
    offset = torch.arange(window, device=x.device)
    x = F.pad(x, (window // 2,) * 4)
    x = x[:, :, (i[:, None] + offset)[:, :, None], (j[:, None] + offset)[:, None]]  # B C n k k
    return x.flatten(3).unflatten(1, (heads, x.shape[1] // heads)).transpose(2, 3)


def _slid(x: Float[Tensor, "B C H W"], heads: int, window: int) -> Float[Tensor, "B h d k R W"]:
    """The map shifted by each column offset, zeros outside; R = H+k-1 rows, to take H from.

    Slices, not F.unfold: that joins rows and columns, and to take them apart again costs compilers
    minutes where sizes are symbols.
    """
    W = x.shape[3]
    x = F.pad(x, (window // 2,) * 4)
    x = torch.stack([x.narrow(3, b, W) for b in range(window)], 2)  # B C k R W
    return x.unflatten(1, (heads, -1))


def _off(size: int, window: int, device: torch.device) -> Bool[Tensor, "k size"]:
    """True where an offset leads off the map."""
    to = torch.arange(size, device=device) + torch.arange(window, device=device)[:, None]
    return (to < window // 2) | (to >= size + window // 2)


def _taking_part(
    H: int, W: int, window: int, border: str, device: torch.device
) -> Bool[Tensor, "n kk"]:
    """Which pixels of each window take part in its softmax."""
    if border == "zero":
        return torch.ones(H * W, window**2, dtype=torch.bool, device=device)
    rows, cols = _off(H, window, device), _off(W, window, device)
    off = rows.mT[:, None, :, None] | cols.mT[None, :, None, :]  # H W k k
    return ~off.reshape(H * W, window**2)


def _check(q, k, v, row, col, heads: int, window: int, border: str) -> None:
    here, C = "local_attention", q.shape[1]
    if window < 1 or window % 2 == 0:
        raise ValueError(f"{here}: window must be odd, got {window=}; try {window + 1}")
    if heads < 1 or C % heads:
        raise ValueError(f"{here}: heads must divide the channels, got {C=} {heads=}")
    if border not in BORDERS:
        raise ValueError(f"{here}: border must be one of {BORDERS}, got {border=}")
    if (row is None) != (col is None):
        raise ValueError(f"{here}: row and col come together, got only one of them")
    if row is None:
        return
    d = C // heads
    if d % 2:
        raise ValueError(
            f"{here}: relative positions split a head into two halves, got head width "
            f"{d} ({C=} {heads=}); choose heads so that {C} / heads is even"
        )
    if row.shape not in ((1, window, d // 2), (heads, window, d // 2)):
        raise ValueError(
            f"{here}: row and col must be (1 or {heads}, {window}, {d // 2}), "
            f"got {tuple(row.shape)}"
        )


def _flops(q: Any, k: Any, v: Any, row: Any, col: Any, heads: int, window: int, border: str) -> int:
    """q . k, q . r and the weighted sum: a multiplication and an addition per entry of each."""
    B, C, H, W = q
    pairs = H * W * window**2
    if border == "mask":
        pairs = math.prod(_places_along(size, window) for size in (H, W))
    return 2 * B * C * pairs * (1 + (k is not None) + (row is not None))


def _places_along(size: int, window: int) -> int:
    """The sum of all windows' pixels on the map, along one side."""
    half = window // 2
    return sum(min(at + half, size - 1) - max(at - half, 0) + 1 for at in range(size))


LOCAL_ATTENTION = Operator(
    "local_attention",
    plain={"shifted": shifted, "unfolded": unfolded, "blocked": blocked},
    kernels={"native": NATIVE, "triton": TRITON, "tiled": TILED},
    check=_check,
    output=lambda q, *_: torch.empty_like(q),
    flops=_flops,
    keeps=1,
    tables=("row", "col"),
    like_input=("q", "k", "v"),
    mixed=True,
    autocast=True,
    cheapest=lambda *_: "blocked" if torch.compiler.is_exporting() else "shifted",
)
