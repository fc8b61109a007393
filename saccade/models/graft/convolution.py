"""Replace 3x3 convolutions by stand-alone attention or learned queries (SASA, 3 and A.3).

Stride, groups, widths, dilation and whether there is a bias stay; the norm behind stays where it
is. With a stride, attention runs at full resolution and 2x2 means follow (A.3); QnA strides.

Begin as the convolution (`keep`). A head of SASA weighs the places of its window alike for all its
channels, with shares that are not negative: the nearest such thing is, for the head's outputs o,

    W[o, c, place]  ~  Wv[o, c] p[place],   p >= 0, sum p = 1

found by alternating least squares; the table of biases is log p, and queries begin at 0. QnA's
heads weigh places by Ws, of either sign, and the heads' sums are mixed: kernels u_a are the
singular vectors of W over places, and each head takes a slice of the singular vectors of one of
them, the largest first.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.sasa import StandAloneAttention
from saccade.models.graft.site import (
    GroupedLinear,
    Options,
    Site,
    alike,
    describe,
    foreign_modules,
    heads_of,
    set_module,
)

SIDE = 14  # pixels a side of the map on which old and new are compared
LEAST = 1e-4  # the share of a place that counts for nothing


def sites(model: nn.Module, kind: str) -> Iterator[Site]:
    """The 3x3 convolutions of a network, for "sasa" or "qna"."""
    first = True
    for path, module in foreign_modules(model):
        if not isinstance(module, nn.Conv2d):
            continue
        reads_image, first = first, False
        if module.kernel_size != (3, 3):
            continue
        why = _why(module, kind)
        if why:
            yield Site(path, describe(module), why=why)
            continue
        yield Site(
            path,
            describe(module),
            make=lambda options, conv=module: alike(_layer(kind, conv, options), conv),
            put=lambda new, path=path: set_module(model, path, new),
            begin=begin_sasa if kind == "sasa" else begin_qna,
            reads=(module.in_channels, SIDE, SIDE),
            only_named=reads_image,
            why="reads the image" if reads_image else "",
        )


def _why(conv: nn.Conv2d, kind: str) -> str:
    if type(conv).__module__.startswith("saccade."):
        return "is a layer of saccade's own"
    if conv.stride[0] != conv.stride[1] or conv.stride[0] > 2:
        return f"stride {conv.stride} is neither 1 nor 2"
    if conv.dilation[0] != conv.dilation[1]:
        return f"dilation {conv.dilation} differs by side"
    same = conv.padding in ("same", conv.dilation) or type(conv).__name__ == "Conv2dSame"
    if not same or conv.padding_mode != "zeros":
        return f"padding {conv.padding} does not keep the map's size"
    if kind == "qna" and conv.dilation[0] > 1:
        return "QnA has no dilation"
    return ""


def _layer(kind: str, conv: nn.Conv2d, options: Options) -> nn.Module:
    dim, out, stride, groups = conv.in_channels, conv.out_channels, conv.stride[0], conv.groups
    bias, keep = conv.bias is not None, options.get("keep", False)
    device = conv.weight.device
    own: dict[str, Any] = {k: v for k, v in options.items() if k != "keep"}
    with torch.device(device):
        if kind == "sasa":
            relative = own.get("position", "relative") == "relative"
            own.setdefault("heads", heads_of(out, most=8, even=relative))
            return StandAloneAttention(
                dim, out, stride=stride, dilation=conv.dilation[0], groups=groups, bias=bias,
                layout="NCHW", **{"table": keep, **own},
            )  # fmt: skip
        width = own.pop("width", out)
        if width % groups:
            raise ValueError(f"graft: width must be a multiple of {groups} groups, got {width=}")
        if keep and groups > 1:
            own.setdefault("heads", groups * heads_of(width // groups, side=8))
        own.setdefault("heads", heads_of(width, side=8))
        layer = LearnedQueryAttention(
            dim, stride=stride, width=width, out_dim=out, bias=bias, layout="NCHW", **own
        )
        if groups > 1:
            for name, ends in (
                ("key", (dim, width)),
                ("value", (dim, width)),
                ("mix", (width, out)),
            ):
                setattr(layer, name, GroupedLinear(*ends, groups, bias))
    return layer


# -- begin as the convolution ---------------------------------------------------------------------


@torch.no_grad()
def begin_sasa(new: Any, conv: Any) -> None:
    """Queries at 0, the table at log p, and the values that p asks for."""
    weight = conv.weight.detach().double().flatten(2).cpu()  # o c 9
    of_head = weight.unflatten(0, (new.heads, -1)).flatten(1, 2)  # h (o c) 9
    shares, values = zip(*(_nearest(part) for part in of_head), strict=True)
    p = torch.stack(shares)
    middle = new.window // 2
    table = torch.full((new.heads, new.window, new.window), LEAST, dtype=p.dtype)
    if new.window > 1:
        inner = slice(middle - 1, middle + 2)
        table[:, inner, inner] = p.clamp(min=LEAST).unflatten(1, (3, 3))
    new.table.copy_(table.log())
    new.query.weight.zero_()
    new.value.weight.copy_(torch.cat(values).view_as(new.value.weight))
    if conv.bias is not None:
        for part in (new.query, new.key):
            if part is not None:
                part.bias.zero_()
        new.value.bias.copy_(conv.bias)


def _nearest(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Shares p over places and values m with m p^T near the matrix, by turns."""
    _, _, v = torch.linalg.svd(matrix, full_matrices=False)
    starts = [torch.full((9,), 1 / 9, dtype=matrix.dtype), v[0].clamp(min=0), (-v[0]).clamp(min=0)]
    best, least_error = (starts[0], matrix.mean(1)), float("inf")
    for p in starts:
        if p.sum() == 0:
            continue
        for _ in range(30):
            m = matrix @ p / (p @ p)
            p = (matrix.mT @ m / (m @ m).clamp(min=1e-30)).clamp(min=0)
            if p.sum() < 1e-12:
                break
        else:
            p = p / p.sum()
            m = matrix @ p / (p @ p)
            error = float((matrix - m[:, None] * p).norm())
            if error < least_error:
                best, least_error = (p, m), error
    return best


@torch.no_grad()
def begin_qna(new: Any, conv: Any) -> None:
    """Keys at 0, so that all places are alike, and Ws, Wv and Wo from singular vectors."""
    groups, L, window = conv.groups, new.queries, new.window
    weight = conv.weight.detach().double().cpu().flatten(2)  # o c 9
    count = new.heads // groups  # heads of a group
    width = new.value.weight.shape[0]
    d = width // new.heads
    values = torch.zeros(width, weight.shape[1], dtype=weight.dtype)
    mix = torch.zeros(weight.shape[0], width // groups, dtype=weight.dtype)
    kernels = torch.zeros(new.heads, 9, dtype=weight.dtype)
    for g, part in enumerate(weight.chunk(groups)):  # o/g c 9
        rows = slice(g * len(part), (g + 1) * len(part))
        _, s, v = torch.linalg.svd(part.flatten(0, 1), full_matrices=False)
        slices = []
        for kernel in v[: max(int((s > 1e-9 * s[0]).sum()), 1)]:
            left, size, right = torch.linalg.svd(part @ kernel, full_matrices=False)
            for at in range(0, len(size), d):
                cut = slice(at, at + d)
                root = size[cut].sqrt()
                energy = float((size[cut] ** 2).sum())
                slices.append((energy, kernel, left[:, cut] * root, root[:, None] * right[cut]))
        slices.sort(key=lambda each: -each[0])
        for i, (_, kernel, out, inward) in enumerate(slices[:count]):
            head, n = g * count + i, out.shape[1]
            kernels[head] = kernel
            values[head * d : head * d + n] = inward
            mix[rows, i * d : i * d + n] = out
    new.key.weight.zero_()
    new.value.weight.copy_(values)
    new.mix.weight.copy_(mix)
    new.rpe.zero_()
    places = torch.zeros(new.heads, window, window, dtype=weight.dtype)
    middle = window // 2
    inner = slice(middle - 1, middle + 2) if window > 1 else slice(0, 1)
    places[:, inner, inner] = (
        kernels.unflatten(1, (3, 3)) if window > 1 else kernels.sum(1)[:, None, None]
    )
    new.scale.copy_((places * window**2 / L).permute(1, 2, 0)[:, :, None].expand_as(new.scale))
    for part in (new.key, new.value, new.mix):
        if part.bias is not None:
            part.bias.zero_()
    if conv.bias is not None:
        new.mix.bias.copy_(conv.bias)
