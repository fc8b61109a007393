"""Self-attention inside windows that tile the map (QnA-ViT's "SA" blocks).

    Y = softmax(Q K^T / sqrt(d) + b) V,    b[i, j] = table[y_i - y_j, x_i - x_j]

within each window; the table of relative positions is Swin's, the windows are not shifted. A map
that the windows do not tile is filled up below and to the right, and the filling takes no part.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops.modes import transformed
from saccade.ops.operator import Operator
from saccade.ops.precision import hidden_logit, wide


def window_attention(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int
) -> Float[Tensor, "B H W C"]:
    """Attention inside each window; `qkv` holds q, k and v side by side."""
    return WINDOW_ATTENTION(qkv, table, window)


fx.wrap("window_attention")  # one node to torch.fx


def masked_window_attention(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int,
    padding: Bool[Tensor, "B H W"] | None, pairs: Tensor | None,
) -> Float[Tensor, "B H W C"]:  # fmt: skip
    """The same with masks: padding, and pairs of pixels that must not attend to each other.

    Args:
        qkv, table, window: as above
        padding: True outside of the images
        pairs: n N N or n heads N N, of the windows of one image or of all images; what is added to
            the logits, or bool: True where the row's pixel may attend to the column's
    """
    extra = _extra(qkv, table, window, padding, pairs)
    if extra is None:
        return window_attention(qkv, table, window)
    return MASKED_WINDOW_ATTENTION(qkv, table, extra, window)


def masked_window_weights(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int,
    padding: Bool[Tensor, "B H W"] | None, pairs: Tensor | None,
) -> Float[Tensor, "n heads N N"]:  # fmt: skip
    """How much each pixel (row) takes from each other one (column) of its window."""
    (q, k, _), bias, _ = _split(qkv, table, window)
    extra = _extra(qkv, table, window, padding, pairs)
    return _softmax(q, k, bias if extra is None else bias + extra)


def _extra(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int,
    padding: Bool[Tensor, "B H W"] | None, pairs: Tensor | None,
) -> Float[Tensor, "n g M N"] | None:  # fmt: skip
    """Both masks as one sum that is added to the logits, for all n windows."""
    B, H, W, _ = qkv.shape
    h, w = sides(window, H, W)
    n, heads, extra = B * -(-H // h) * -(-W // w), table.shape[1], None
    if pairs is not None:
        pairs = pairs[:, None] if pairs.ndim == 3 else pairs
        known = pairs.ndim == 4 and pairs.shape[0] > 0 and n % pairs.shape[0] == 0
        if not known or pairs.shape[1] not in (1, heads) or pairs.shape[2:] != (h * w,) * 2:
            raise ValueError(
                f"window_attention: a mask of pairs is (n, N, N) or (n, {heads}, N, N) with N = "
                f"{h * w} and n windows of one image or of all ({n}), got {tuple(pairs.shape)}"
            )
        if pairs.dtype == torch.bool:
            allowed, pairs = pairs, qkv.new_zeros(pairs.shape)
            pairs = pairs.masked_fill(~allowed, hidden_logit(qkv))
        extra = pairs.to(qkv.dtype).repeat(n // pairs.shape[0], 1, 1, 1)
    if padding is not None:
        off = tiled(padding[..., None].to(qkv.dtype), h, w).mT[:, None] > 0  # n 1 1 N
        hidden = qkv.new_zeros(off.shape).masked_fill(off, hidden_logit(qkv))
        extra = hidden if extra is None else extra + hidden
    return extra


def masked(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"],
    extra: Float[Tensor, "n g M N"], window: int,
) -> Float[Tensor, "B H W C"]:  # fmt: skip
    """The equation with `extra` added to the logits."""
    return windowed(qkv, table, window, extra)


def windowed(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int,
    extra: Float[Tensor, "n g M N"] | None = None,
) -> Float[Tensor, "B H W C"]:  # fmt: skip
    """The equation, all windows at once."""
    (q, k, v), bias, (h, w) = _split(qkv, table, window)
    learns = torch.is_grad_enabled() and (qkv.requires_grad or table.requires_grad)
    if extra is not None:
        bias = bias + extra
        learns = learns or (torch.is_grad_enabled() and extra.requires_grad)
    if (
        learns or transformed() or torch.jit.is_tracing()
    ):  # PyTorch's fused attention has one derivative, and no forward one
        y = _softmax(q, k, bias).to(v.dtype) @ v
    else:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    y = y.transpose(1, 2)
    if torch.compiler.is_exporting():  # ONNX lays the product out in another order
        y = y.clone(memory_format=torch.contiguous_format)
    return untiled(y.flatten(2), qkv.shape[1], qkv.shape[2], h, w)


def _split(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int
) -> tuple[Float[Tensor, "3 n heads N d"], Float[Tensor, "m heads N N"], tuple[int, int]]:
    """q, k and v of the n windows of all images; what is added to q k^T; the windows' sides.

    The bias comes once for all (m = 1), or where filling must be masked, per window (m = n).
    """
    H, W = qkv.shape[1:3]
    h = w = window
    if not torch.compiler.is_compiling():  # there, sizes may be symbols
        h, w = sides(window, H, W)
    heads = table.shape[1]
    windows = tiled(qkv, h, w).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    bias = bias_of(table, window, h, w)[None]
    if torch.compiler.is_exporting() or H % h or W % w:
        inside = tiled(torch.ones_like(qkv[..., :1]), h, w).unsqueeze(1).mT  # n 1 1 N
        bias = bias.masked_fill(inside == 0, -torch.inf)
    return windows, bias.to(windows.dtype), (h, w)


def bias_of(
    table: Float[Tensor, "t heads"], window: int, h: int, w: int
) -> Float[Tensor, "heads N N"]:
    """b for windows of h x w pixels, at most as large as the table knows."""
    y, x = (torch.arange(n, device=table.device) for n in (h, w))
    last = window - 1
    dy, dx = (i[:, None] - i + last for i in (y, x))
    place = dy[:, None, :, None] * (2 * last + 1) + dx[None, :, None, :]  # y_i x_i y_j x_j
    return table[place.flatten()].view(h * w, h * w, -1).permute(2, 0, 1)


def _softmax(
    q: Float[Tensor, "n heads N d"], k: Float[Tensor, "n heads N d"],
    bias: Float[Tensor, "m heads N N"],
) -> Float[Tensor, "n heads N N"]:  # fmt: skip
    logits = q @ k.mT * q.shape[-1] ** -0.5 + bias
    return torch.softmax(logits, -1, dtype=wide(logits.dtype))


# -- windows --------------------------------------------------------------------------------------
#
# torch.export assumes that no axis has length one, but a map may have one row of windows. In a
# graph that is exported for every size, pixels are therefore gathered by index instead of by axes.


def sides(window: int, H: int, W: int) -> tuple[int, int]:
    """Height and width of the windows: at most those of the map."""
    if min(H, W) < 1:
        raise ValueError(f"window_attention: a map has pixels, got {H=} {W=}")
    return min(window, H), min(window, W)


def tiled(x: Float[Tensor, "B H W C"], h: int, w: int) -> Float[Tensor, "n N C"]:
    """The h x w windows of all images, row by row; zeros fill the last ones."""
    H, W = x.shape[1:3]
    rows, columns = (H + h - 1) // h, (W + w - 1) // w
    if torch.compiler.is_exporting():
        i = torch.arange(rows * columns * h * w, device=x.device)
        window, pixel = i // (h * w), i % (h * w)
        above, left = _divided(window, columns)
        row, column = above * h + pixel // w, left * w + pixel % w
        picked = row.clamp(max=H - 1) * W + column.clamp(max=W - 1)
        inside = ((row < H) & (column < W)).to(x.dtype)
        tokens = x.flatten(1, 2).index_select(1, picked) * inside[:, None]
        return tokens.flatten(0, 1).unflatten(0, (-1, h * w))
    x = F.pad(x, (0, 0, 0, columns * w - W, 0, rows * h - H))
    x = x.view(-1, rows, h, columns, w, x.shape[3])
    return x.transpose(2, 3).reshape(-1, h * w, x.shape[5])


def untiled(x: Float[Tensor, "n N C"], H: int, W: int, h: int, w: int) -> Float[Tensor, "B H W C"]:
    """The maps that `tiled` took apart."""
    rows, columns = (H + h - 1) // h, (W + w - 1) // w
    if torch.compiler.is_exporting():
        row, column = _divided(torch.arange(H * W, device=x.device), W)
        place = (row // h * columns + column // w) * h * w + row % h * w + column % w
        x = x.flatten(0, 1).unflatten(0, (-1, rows * columns * h * w))
        return x.index_select(1, place).unflatten(1, (H, W))
    x = x.view(-1, rows, columns, h, w, x.shape[2]).transpose(2, 3)
    return x.reshape(-1, rows * h, columns * w, x.shape[5])[:, :H, :W]


def _divided(i: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """Quotient and rest, by operations that ONNX has for a divisor known only at run time."""
    quotient = i // by
    return quotient, i - quotient * by


# -- the operator ---------------------------------------------------------------------------------


def _check(qkv: Tensor, table: Tensor, window: int, name: str = "window_attention") -> None:
    heads, side = table.shape[1], 2 * window - 1
    if qkv.shape[3] % (3 * heads) or len(table) != side**2:
        raise ValueError(
            f"{name}: qkv is B H W 3C with heads dividing C, table (2 window - 1)^2 "
            f"heads, got {qkv.shape=} {table.shape=} {window=}"
        )


def _flops(qkv: Any, table: Any, window: int) -> int:
    """q . k and the weighted sum of every pair of pixels in a window; filled ones count whole."""
    B, H, W, C3 = qkv
    h, w = sides(window, H, W)
    pairs = B * -(-H // h) * -(-W // w) * (h * w) ** 2
    return 2 * 2 * pairs * C3 // 3


def _unmasked(
    qkv: Float[Tensor, "B H W C3"], table: Float[Tensor, "t heads"], window: int
) -> Float[Tensor, "B H W C"]:
    return windowed(qkv, table, window)


WINDOW_ATTENTION = Operator(
    "window_attention",
    plain={"windowed": _unmasked},
    kernels={},
    check=_check,
    output=lambda qkv, table, window: qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3),
    flops=_flops,
    tables=("table",),
    autocast=True,
)

MASKED_WINDOW_ATTENTION = Operator(
    "masked_window_attention",
    plain={"masked": masked},
    kernels={},
    check=lambda qkv, table, extra, window: _check(qkv, table, window, "masked_window_attention"),
    output=lambda qkv, table, extra, window: qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3),
    flops=lambda qkv, table, extra, window: _flops(qkv, table, window),
    tables=("table",),
    autocast=True,
)
