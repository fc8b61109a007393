"""Local attention with options: masks, tables of biases, dilation, causal and 1-D windows.

    y_ij = sum over the window of  softmax(q_ij . k_ab + q_ij . r_uv + b_uv)  v_ab
    (a, b) = (i, j) + dilation (u, v),    r_uv = concat(row_u, col_v),    b: the table, per head

Without options it is `saccade.ops.sasa.local_attention`. The kernels of that operator also compute
it where the map can be rearranged for them (`relaid`): a dilated window is an ordinary one on every
dilation-th pixel, a window of one row is an ordinary one on a map of one row. Otherwise `slid` is
the equation, offset by offset, in plain PyTorch.

The softmax leaves out places that come after the pixel in reading order (`causal`), places beyond
the map (border="mask"; "zero" includes them, with key and value zero), and those where `inside` is
0. The output of a window with no place left is 0.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from saccade.ops import sasa
from saccade.ops.operator import Operator
from saccade.ops.precision import hidden_logit, no_autocast, wide


def neighbourhood_attention(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r kh half"] | None, col: Float[Tensor, "r kw half"] | None,
    table: Float[Tensor, "t kh kw"] | None, inside: Float[Tensor, "B H W"] | None, heads: int,
    height: int, width: int, dilation: int = 1, causal: bool = False, border: str = "zero",
    backend: str = "auto",
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """Attend within windows of `height` x `width` places, `dilation` pixels apart.

    Tables belong to all heads (r, t = 1) or to one each. `inside` is 1 where an image is, else 0.
    """
    return NEIGHBOURHOOD(
        q, k, v, row, col, table, inside, heads, height, width, dilation, causal, border,
        backend=backend,
    )  # fmt: skip


fx.wrap("neighbourhood_attention")  # one node to torch.fx


def slid(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r kh half"] | None, col: Float[Tensor, "r kw half"] | None,
    table: Float[Tensor, "t kh kw"] | None, inside: Float[Tensor, "B H W"] | None, heads: int,
    height: int, width: int, dilation: int, causal: bool, border: str,
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """The equation, one offset at a time."""
    with no_autocast(q.device):
        a = _shares(
            q, k, row, col, table, inside, heads, height, width, dilation, causal, border
        )  # fmt: skip
        vs = _padded(v.to(a.dtype).unflatten(1, (heads, -1)), height, width, dilation, 0.0)
        shares = a.split(1, 2)  # B h 1 H W each
        views = _views(vs, q.shape[2:], height, width, dilation)
        terms = (share * view for share, view in zip(shares, views, strict=True))
        y = functools.reduce(torch.add, terms)
    return y.flatten(1, 2).to(q.dtype)


def relaid(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None, v: Float[Tensor, "B C H W"],
    row: Float[Tensor, "r kh half"] | None, col: Float[Tensor, "r kw half"] | None,
    table: Float[Tensor, "t kh kw"] | None, inside: Float[Tensor, "B H W"] | None, heads: int,
    height: int, width: int, dilation: int, causal: bool, border: str,
) -> Float[Tensor, "B C H W"]:  # fmt: skip
    """`local_attention` of the map in another order, where `fits` says so; else `slid`."""
    if not fits(q, table, inside, height, width, dilation, causal, border):
        return slid(
            q, k, v, row, col, table, inside, heads, height, width, dilation, causal, border
        )  # fmt: skip
    H, W = q.shape[2:]
    lines = 2 if height == 1 else 3 if width == 1 else None
    maps: list[Any] = [None if x is None else _lines(_apart(x, dilation), lines) for x in (q, k, v)]
    if row is not None and col is not None:
        row, col = (_centred(t, max(height, width)) for t in (row, col))
    q, k, v = maps
    y = sasa.local_attention(q, k, v, row, col, heads, max(height, width), border)
    size = [-(-n // dilation) for n in (H, W)]
    return _together(_joined(y, lines, size), dilation, H, W)


def fits(
    q: Any,
    table: Any,
    inside: Any,
    height: int,
    width: int,
    dilation: int,
    causal: bool,
    border: str,
) -> bool:
    """Whether `relaid` can compute such a call by the kernels of local attention."""
    if table is not None or inside is not None or causal or torch.compiler.is_compiling():
        return False
    if height != width and (min(height, width) > 1 or border != "mask"):
        return False
    H, W = q.shape[2:]
    return dilation == 1 or border == "zero" or not (H % dilation or W % dilation)


def neighbourhood_weights(
    q: Float[Tensor, "B C H W"], k: Float[Tensor, "B C H W"] | None,
    row: Float[Tensor, "r kh half"] | None, col: Float[Tensor, "r kw half"] | None,
    table: Float[Tensor, "t kh kw"] | None, inside: Float[Tensor, "B H W"] | None, heads: int,
    height: int, width: int, dilation: int = 1, causal: bool = False, border: str = "zero",
) -> Float[Tensor, "B h n kh kw"]:  # fmt: skip
    """What the softmax gives, of all pixels in reading order."""
    inputs = (row, col, table, inside, heads, height, width, dilation, causal, border)
    NEIGHBOURHOOD.check(q, k, q, *inputs)
    with no_autocast(q.device):
        a = _shares(q, k, *inputs)  # B h kk H W
    return a.flatten(3).mT.unflatten(3, (height, width))


# -- the parts of the equation --------------------------------------------------------------------


def _shares(
    q, k, row, col, table, inside, heads, height, width, dilation, causal, border
) -> Tensor:
    """The softmax, B h kk H W; 0 for what is left out."""
    B, C, H, W = q.shape
    qs = q.to(wide(q.dtype)).unflatten(1, (heads, C // heads))  # B h d H W
    s = qs.new_zeros(B, heads, height * width, H, W)
    if k is not None:
        ks = _padded(k.to(qs.dtype).unflatten(1, (heads, -1)), height, width, dilation, 0.0)
        views = _views(ks, (H, W), height, width, dilation)
        s = s + torch.stack([(qs * view).sum(2) for view in views], 2)
    if row is not None and col is not None:
        down, along = (
            (part.to(qs.dtype) @ half.flatten(3)).unflatten(3, (H, W))
            for part, half in zip((row, col), qs.chunk(2, 2), strict=True)
        )
        s = s + (down.unsqueeze(3) + along.unsqueeze(2)).flatten(2, 3)
    if table is not None:
        s = s + table.to(s.dtype).flatten(1)[:, :, None, None]
    on = _on(inside, q, height, width, dilation, causal, border)
    if on is None:
        return s.softmax(2)
    return s.masked_fill(~on, hidden_logit(s)).softmax(2).masked_fill(~on, 0)


def _on(inside, q, height, width, dilation, causal, border) -> Tensor | None:
    """Which places take part, (B or 1) 1 kk H W; None if all do."""
    H, W = q.shape[2:]
    on = None
    if inside is not None or border == "mask":
        inside = q.new_ones(1, H, W) if inside is None else inside.to(q.dtype)
        beyond = 0.0 if border == "mask" else 1.0
        inside = _padded(inside[:, None, None], height, width, dilation, beyond)
        views = _views(inside, (H, W), height, width, dilation)
        on = torch.cat([*views], 2) > 0
    if causal:
        place = torch.arange(height * width, device=q.device)
        before = (place <= place.numel() // 2)[:, None, None]  # in reading order, the pixel as well
        on = before.expand(-1, H, W)[None, None] if on is None else on & before
    return on


def _padded(x: Tensor, height: int, width: int, dilation: int, value: float) -> Tensor:
    """A map (*, H, W), padded by as much as its windows reach beyond it."""
    y, x_ = height // 2 * dilation, width // 2 * dilation
    return F.pad(x, (x_, x_, y, y), value=value)


def _views(x: Tensor, size: Any, height: int, width: int, dilation: int) -> Iterator[Tensor]:
    """For each offset, in reading order, the pixels that all windows have there."""
    H, W = size
    for a in range(height):
        rows = x.narrow(-2, a * dilation, H)
        yield from (rows.narrow(-1, b * dilation, W) for b in range(width))


def _apart(x: Float[Tensor, "B C H W"], dilation: int) -> Tensor:
    """Every dilation-th pixel as a map of its own, zeros behind the last ones."""
    if dilation == 1:
        return x
    H, W = x.shape[2:]
    x = F.pad(x, (0, -W % dilation, 0, -H % dilation))
    x = x.unflatten(3, (-1, dilation)).unflatten(2, (-1, dilation))  # B C h s w s
    return x.permute(0, 3, 5, 1, 2, 4).flatten(0, 2)


def _together(x: Tensor, dilation: int, H: int, W: int) -> Float[Tensor, "B C H W"]:
    """Undo `_apart`."""
    if dilation == 1:
        return x
    x = x.unflatten(0, (-1, dilation, dilation)).permute(0, 3, 4, 1, 5, 2)  # B C h s w s
    return x.flatten(4, 5).flatten(2, 3)[:, :, :H, :W]


def _lines(x: Float[Tensor, "B C H W"], axis: int | None) -> Tensor:
    """Rows (axis 2) or columns (axis 3) as maps of their own, of one row or column each."""
    return x if axis is None else x.movedim(axis, 1).flatten(0, 1).unsqueeze(axis)


def _joined(x: Tensor, axis: int | None, size: Sequence[int]) -> Float[Tensor, "B C H W"]:
    """Undo `_lines`."""
    if axis is None:
        return x
    return x.squeeze(axis).unflatten(0, (-1, size[axis - 2])).movedim(1, axis)


def _centred(table: Float[Tensor, "r k half"], size: int) -> Float[Tensor, "r size half"]:
    """The table of a larger window, with zeros for offsets that the mask leaves out."""
    more = (size - table.shape[1]) // 2
    return F.pad(table, (0, 0, more, more)) if more else table


# -- the operator ---------------------------------------------------------------------------------


def _check(
    q, k, v, row, col, table, inside, heads, height, width, dilation, causal, border
) -> None:  # fmt: skip
    here, C = "neighbourhood_attention", q.shape[1]
    if min(height, width) < 1 or height % 2 == 0 or width % 2 == 0:
        raise ValueError(f"{here}: windows are odd to have a centre, got {height=} {width=}")
    if dilation < 1:
        raise ValueError(f"{here}: places are 1 pixel apart or more, got {dilation=}")
    if heads < 1 or C % heads:
        raise ValueError(f"{here}: heads must divide the channels, got {C=} {heads=}")
    if border not in sasa.BORDERS:
        raise ValueError(f"{here}: border must be one of {sasa.BORDERS}, got {border=}")
    if (row is None) != (col is None):
        raise ValueError(f"{here}: row and col come together, got only one of them")
    half, tables = C // heads // 2, {"row": (row, height), "col": (col, width)}
    for name, (t, size) in tables.items():
        if t is not None and (
            t.shape[0] not in (1, heads) or t.shape[1:] != (size, half) or C // heads % 2
        ):
            raise ValueError(
                f"{here}: {name} is (1 or {heads}, {size}, half of an even head width), "
                f"got {tuple(t.shape)} {C=}"
            )
    if table is not None and (
        table.shape[0] not in (1, heads) or table.shape[1:] != (height, width)
    ):
        raise ValueError(
            f"{here}: table is (1 or {heads}, {height}, {width}), got {tuple(table.shape)}"
        )


def _cheapest(q, k, v, row, col, table, inside, heads, height, width, *rest) -> str:
    return "relaid" if fits(q, table, inside, height, width, *rest) else "slid"


def _flops(
    q, k, v, row, col, table, inside, heads, height, width, dilation, causal, border
) -> int:  # fmt: skip
    """q . k, q . r and the weighted sum; every place of every window, masked or not."""
    B, C, H, W = q
    pairs = H * W * height * width
    return 2 * B * C * pairs * (1 + (k is not None) + (row is not None))


NEIGHBOURHOOD = Operator(
    "neighbourhood_attention",
    plain={"slid": slid, "relaid": relaid},
    kernels={},
    check=_check,
    output=lambda q, *_: torch.empty_like(q),
    flops=_flops,
    tables=("row", "col", "table", "inside"),
    like_input=("q", "k", "v"),
    mixed=True,
    autocast=True,
    cheapest=_cheapest,
)
