"""Every layer of the package beside the same function written as calls of its sub-modules.

A layer may compute its function as it likes, as long as it is this function, whatever somebody did
to its sub-modules: wrapped, hooked, pruned, replaced. `LAYERS` is a table of small layers; each
knows an input it takes, and `by_calls` is the equation with one call for each sub-module.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.block import FeedForward
from saccade.layers.conv import Conv1x1, Conv3x3, ProductConv2d
from saccade.layers.dot import DotProductAttention
from saccade.layers.layout import MapLayer
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem
from saccade.layers.window import WindowAttention


@dataclass(frozen=True)
class Layer:
    make: Callable[[], nn.Module]
    by_calls: Callable[[nn.Module, Tensor], Tensor]
    channels: int
    channels_last: bool = True  # B H W C, or else B C H W

    def built(self, seed: int = 0) -> nn.Module:
        """The layer with weights that leave no part without effect: tables and biases not zero."""
        torch.manual_seed(seed)
        layer = self.make()
        if self.channels_last and isinstance(layer, MapLayer):
            layer.layout = "NHWC"  # a map may be as high as it has channels
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.std() < 1e-3 or parameter.numel() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
            for name, buffer in layer.named_buffers():
                if name.endswith("running_mean"):
                    buffer.normal_(std=0.2)
                if name.endswith("running_var"):
                    buffer.uniform_(0.5, 1.5)
        return layer

    def image(self, batch: int = 2, H: int = 12, W: int = 13, seed: int = 0) -> Tensor:
        torch.manual_seed(seed + 1)
        pixels = torch.randn(batch, H, W, self.channels)
        return pixels if self.channels_last else pixels.permute(0, 3, 1, 2)


# -- the equations --------------------------------------------------------------------------------


def key_only(layer: nn.Module, x: Tensor) -> Tensor:
    tokens = x.flatten(1, -2)
    keys, values = layer.key(tokens), layer.value(tokens)
    logits = layer.saliency(keys)
    heads = logits.shape[-1]
    a = (logits * (keys.shape[-1] // heads) ** -0.5).softmax(1)
    context = torch.einsum("bnh,bnhd->bhd", a, keys.unflatten(-1, (heads, -1))).flatten(1)
    y = layer.mix(layer.gate(context[:, None] * values) + keys)
    return y.unflatten(1, x.shape[1:-1])


def _answers(layer: nn.Module, x: Tensor) -> Tensor:
    """What each query of each head takes from each window: B Ho Wo L h d."""
    heads, k, stride, padding = layer.heads, layer.window, layer.stride, layer.padding
    queries = layer.query.unflatten(1, (heads, -1))
    if layer.normalize:
        queries = queries / (queries.norm(dim=-1, keepdim=True) + 1e-6)
    queries = queries * queries.shape[-1] ** -0.5
    keys = layer.key(x).unflatten(-1, (heads, -1))
    values = layer.value(x).unflatten(-1, (heads, -1))
    scores = torch.einsum("lhd,bijhd->bijlh", queries, keys)
    H, W = x.shape[1:3]
    down, along = ((n + 2 * padding - k) // stride + 1 for n in (H, W))
    logits, taken = [], []
    for i, j in product(range(k), repeat=2):
        rows = torch.arange(down) * stride + i - padding
        columns = torch.arange(along) * stride + j - padding
        inside = ((rows >= 0) & (rows < H))[:, None] & ((columns >= 0) & (columns < W))
        rows, columns = rows.clamp(0, H - 1), columns.clamp(0, W - 1)
        logit = scores[:, rows][:, :, columns] + layer.rpe[i, j]
        logits.append(logit.masked_fill(~inside[..., None, None], -torch.inf))
        taken.append(values[:, rows][:, :, columns])
    weights = torch.stack(logits).softmax(0)  # places B Ho Wo L h
    if layer.scale is not None:
        weights = weights * layer.scale.flatten(0, 1)[:, None, None, None]
    return torch.einsum("obijlh,obijhd->bijlhd", weights, torch.stack(taken))


def learned_queries(layer: nn.Module, x: Tensor) -> Tensor:
    return layer.mix(_answers(layer, x).sum(3).flatten(3))


def learned_upsampling(layer: nn.Module, x: Tensor) -> Tensor:
    f = layer.factor
    answers = _answers(layer, x).flatten(4).unflatten(3, (f, f))  # B H W i j C
    return layer.mix(answers.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2))


def _windows(x: Tensor, k: int) -> Tensor:
    """The k x k pixels around each pixel, zeros outside: k^2 B C H W."""
    H, W = x.shape[2:]
    p = k // 2
    x = F.pad(x, (p, p, p, p))
    places = product(range(k), repeat=2)
    return torch.stack([x[:, :, i : i + H, j : j + W] for i, j in places])


def stand_alone(layer: nn.Module, x: Tensor) -> Tensor:
    q, v = layer.query(x) * layer.scale, layer.value(x)
    k = torch.zeros_like(q) if layer.key is None else layer.key(x)
    window, heads = layer.window, layer.heads
    q, keys, values = (
        t.unflatten(-3, (heads, -1)) for t in (q, _windows(k, window), _windows(v, window))
    )
    logits = torch.einsum("bhdij,obhdij->obhij", q, keys)
    if layer.row is not None:
        rows = layer.row[:, :, None].expand(-1, -1, window, -1)
        columns = layer.col[:, None].expand(-1, window, -1, -1)
        r = torch.cat((rows, columns), -1).flatten(1, 2).expand(heads, -1, -1)  # h k^2 d
        logits = logits + torch.einsum("bhdij,hod->obhij", q, r)
    if layer.border == "mask":
        inside = _windows(torch.ones_like(x[:1, :1]), window)[:, :, 0, None]  # k^2 1 1 H W
        logits = logits.masked_fill(inside == 0, -torch.inf)
    y = torch.einsum("obhij,obhdij->bhdij", logits.softmax(0), values).flatten(1, 2)
    if layer.stride == 2:
        y = F.avg_pool2d(y, 2, 2, ceil_mode=True, count_include_pad=False)
    return y


def _cut(x: Tensor, s: int) -> Tensor:
    """Blocks of s x s pixels, zeros below and to the right: B y x s^2 C."""
    H, W = x.shape[2:]
    x = F.pad(x, (0, -W % s, 0, -H % s)).permute(0, 2, 3, 1)
    return x.unflatten(2, (-1, s)).unflatten(1, (-1, s)).transpose(2, 3).flatten(3, 4)


def attention_stem(layer: nn.Module, x: Tensor, values: str = "mixture") -> Tensor:
    s, heads = layer.side, layer.heads
    q, k = _cut(layer.query(x), s), _cut(layer.key(x), s)
    if values == "mixture":
        v = layer.value(_cut(x, s))
    else:
        reach = s - 1 if values == "conv" else 0
        v = _cut(layer.value(F.pad(x, (reach // 2, reach - reach // 2) * 2)), s)
    q, k, v = (t.unflatten(4, (heads, -1)).transpose(3, 4) for t in (q, k, v))  # B y x h n d
    logits = q @ k.mT
    if layer.row is not None:
        at = torch.arange(s * s)
        down, along = at // s - at[:, None] // s + s - 1, at % s - at[:, None] % s + s - 1
        logits = logits + torch.einsum(
            "byxhid,ijd->byxhij", q, torch.cat((layer.row[down], layer.col[along]), -1)
        )
    if layer.border == "mask":
        inside = _cut(torch.ones_like(x[:1, :1]), s)[..., 0]  # 1 y x n
        logits = logits.masked_fill(inside[:, :, :, None, None] == 0, -torch.inf)
    y = (logits.softmax(-1) @ v).transpose(3, 4).flatten(4)  # B y x n C
    y = y.unflatten(3, (s, s)).transpose(2, 3).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)
    y = y[:, :, : x.shape[2], : x.shape[3]]
    return F.max_pool2d(layer.norm(y), s, ceil_mode=True)


def position(layer: nn.Module, x: Tensor) -> Tensor:
    y = sum(branch(x) for branch in layer.branches)
    return x + y if layer.skip else y


def feed_forward(layer: nn.Module, x: Tensor) -> Tensor:
    x = layer.widen(x)
    if layer.position is not None:
        x = layer.position(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return layer.narrow(layer.act(x))


def window_attention(layer: nn.Module, x: Tensor) -> Tensor:
    H, W = x.shape[1:3]
    h, w = min(layer.window, H), min(layer.window, W)
    last, heads = layer.window - 1, layer.heads
    cut = F.pad(layer.qkv(x), (0, 0, 0, -W % w, 0, -H % h))
    cut = cut.unflatten(2, (-1, w)).unflatten(1, (-1, h)).transpose(2, 3)  # B y x h w 3C
    q, k, v = cut.flatten(3, 4).unflatten(4, (3, heads, -1)).permute(4, 0, 1, 2, 5, 3, 6)
    i = torch.arange(h * w)
    dy, dx = i[:, None] // w - i // w + last, i[:, None] % w - i % w + last
    bias = layer.table[dy * (2 * last + 1) + dx].permute(2, 0, 1)  # heads n n
    logits = q @ k.mT * q.shape[-1] ** -0.5 + bias
    inside = (
        F.pad(torch.ones(H, W), (0, -W % w, 0, -H % h)).unflatten(1, (-1, w)).unflatten(0, (-1, h))
    )
    inside = inside.transpose(1, 2).flatten(2)  # y x n
    logits = logits.masked_fill(inside[:, :, None, None] == 0, -torch.inf)
    y = (logits.softmax(-1) @ v).transpose(3, 4).flatten(4).unflatten(3, (h, w))  # B y x h w C
    y = y.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return layer.mix(y[:, :H, :W])


def dot_product(layer: nn.Module, x: Tensor) -> Tensor:
    tokens = x.flatten(1, -2)
    q, k, v = layer.qkv(tokens).unflatten(2, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    y = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    return layer.mix(y.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:-1])


def convolution(layer: nn.Module, x: Tensor) -> Tensor:
    """The module inside, called, but computing as torch's own class does."""
    inner = layer[0]
    if type(inner) is ProductConv2d and "forward" not in vars(inner):
        inner.forward = partial(nn.Conv2d.forward, inner)
    return inner(x)


# -- the layers -----------------------------------------------------------------------------------


def _sasa(**options) -> Layer:
    return Layer(
        partial(StandAloneAttention, 8, 16, heads=2, window=3, **options), stand_alone, 8, False
    )


def _stem(values: str = "mixture", **options) -> Layer:
    make = partial(AttentionStem, 3, 32, heads=2, values=values, **options)
    return Layer(make, partial(attention_stem, values=values), 3, False)


def _qna(dim: int = 8, heads: int = 2, **options) -> Layer:
    return Layer(partial(LearnedQueryAttention, dim, heads, **options), learned_queries, dim)


LAYERS = {
    "key_only": Layer(partial(KeyOnlyAttention, 16, 4), key_only, 16),
    "key_only_one_head": Layer(partial(KeyOnlyAttention, 12, 1), key_only, 12),
    "qna": _qna(),
    "qna_bias": _qna(bias=True),
    "qna_down": _qna(stride=2, width=16, queries=3),
    "qna_wide": _qna(16, 4, window=5, scale=False, normalize=False),
    "qna_up": Layer(partial(LearnedQueryUpsampling, 8, 2), learned_upsampling, 8),
    "sasa": _sasa(),
    "sasa_mask": _sasa(border="mask", shared=False, scale=True),
    "sasa_stride": _sasa(stride=2),
    "sasa_no_content": _sasa(content=False),
    "sasa_no_position": _sasa(position="none"),
    "stem": _stem(),
    "stem_pointwise": _stem(values="pointwise", border="mask"),
    "stem_conv": _stem(values="conv", position="none"),
    "rpcpe": Layer(partial(RPCPE, 8, 3, norm=False), position, 8, False),
    "rpcpe_norm": Layer(partial(RPCPE, 16, 2, skip=False), position, 16, False),
    "feed": Layer(partial(FeedForward, 8, 32), feed_forward, 8),
    "feed_tanh": Layer(
        partial(FeedForward, 8, 32, act=partial(nn.GELU, approximate="tanh")), feed_forward, 8
    ),
    "feed_position": Layer(lambda: FeedForward(8, 32, RPCPE(32, 2, norm=False)), feed_forward, 8),
    "feed_norm": Layer(lambda: FeedForward(8, 32, RPCPE(32, 2)), feed_forward, 8),
    "window": Layer(partial(WindowAttention, 8, 2, 3), window_attention, 8),
    "dot": Layer(partial(DotProductAttention, 8, 2), dot_product, 8),
    "conv1x1": Layer(lambda: nn.Sequential(Conv1x1(8, 12)), convolution, 8, False),
    "conv1x1_stride": Layer(
        lambda: nn.Sequential(Conv1x1(8, 12, stride=2, bias=False)), convolution, 8, False
    ),
    "conv3x3": Layer(lambda: nn.Sequential(Conv3x3(8, 12)), convolution, 8, False),
}
