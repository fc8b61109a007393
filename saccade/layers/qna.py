"""Learned-query attention (QnA): layers that keep, reduce and increase the resolution.

    s = x (q Wk^T) / sqrt(d)                 q: L learned queries, unit length per head
    P = softmax of s + r over each window    r: one bias per query, head and place
    Y = (sum over queries and places of P Ws (x Wv)) Wo

Because the queries are the same everywhere, the scores are one linear map of x: keys never exist.
Maps are B H W C; `saccade.ops.qna` does the aggregation.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from timm.layers import DropPath
from torch import Tensor, fx, nn
from torch.nn import functional as F

from saccade.layers import flax
from saccade.layers.block import FeedForward
from saccade.layers.conv import Conv1x1, ProductConv2d
from saccade.layers.init import cut_normal_, lecun_normal_
from saccade.layers.layout import MapLayer
from saccade.layers.norm import of_channels
from saccade.layers.ready import residual, whole
from saccade.layers.stem import is_square, product_of
from saccade.layers.untouched import passes, readable, untouched
from saccade.layers.walk import walkable
from saccade.ops import qna as ops
from saccade.ops.native.pixels import LearnedQueriesResidual, PixelProduct, ReadyConvolution
from saccade.ops.native.qna import WIDEST
from saccade.ops.native.residual import FeedResidual, Norm, dense, serves
from saccade.ops.precision import hidden_logit, no_autocast, wide


@readable
class LearnedQueryAttention(MapLayer):
    """Attend to the pixels of every window by a few learned queries.

    The map goes from H x W to ceil(H / stride) x ceil(W / stride), unless `padding` says otherwise.

    width      of queries, keys and values, all heads together; out_dim, of the result; both are
               `dim` if None
    bias       on keys, values and output (on keys it changes nothing, but released weights have it)
    padding    places beyond the border that windows reach into; (window - 1) / 2 keeps them centred
    normalize  queries to unit length, per head
    scale      Ws, which weighs the softmax place by place
    backend    the form of the computation: "auto", or one of `saccade.ops.qna.aggregate`
    layout     "NCHW", "NHWC" or "tokens"; None: as here, B H W C (`size`, `prefix`: `MapLayer`)

    A token before the map's (a class token) gathers the whole map by the same queries.
    """

    takes_prefix = True

    def __init__(
        self,
        dim: int,
        heads: int,
        window: int = 3,
        stride: int = 1,
        queries: int = 2,
        *,
        width: int | None = None,
        out_dim: int | None = None,
        bias: bool = False,
        padding: int | None = None,
        normalize: bool = True,
        scale: bool = True,
        backend: str = "auto",
        layout: str | None = None,
        size: Sequence[int] | None = None,
        prefix: int = 0,
    ):
        super().__init__()
        self.place(dim, layout, size, prefix)
        width = dim if width is None else width
        _check(type(self).__name__, width, heads, window, stride, queries, padding, backend)
        self.heads, self.window, self.stride, self.queries = heads, window, stride, queries
        self.padding = (window - 1) // 2 if padding is None else padding
        self.normalize, self.backend = normalize, backend
        self.query = nn.Parameter(torch.empty(queries, width))
        self.key = nn.Linear(dim, width, bias)  # only ever multiplied with the queries
        self.value = nn.Linear(dim, width, bias)
        self.mix = nn.Linear(width, width if out_dim is None else out_dim, bias)
        self.rpe = nn.Parameter(torch.empty(window, window, queries, heads))
        self.scale = nn.Parameter(torch.empty_like(self.rpe)) if scale else None
        self.undecayed = ("rpe", "scale") if scale else ("rpe",)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        cut_normal_(self.query, (self.query.shape[1] / self.heads) ** -0.5)
        for linear in (self.key, self.value, self.mix):
            lecun_normal_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        nn.init.zeros_(self.rpe)
        if self.scale is not None:
            nn.init.normal_(self.scale, std=0.02)

    def unit_queries(self) -> Float[Tensor, "L h d"]:
        """The queries as the scores see them."""
        q = self.query.to(wide(self.query.dtype)).unflatten(1, (self.heads, -1))
        if self.normalize:
            q = q / (torch.linalg.vector_norm(q, dim=-1, keepdim=True) + 1e-6)
        return q * q.shape[-1] ** -0.5

    def score_map(self, x: Float[Tensor, "B H W C"]) -> tuple[Tensor, Tensor | None]:
        """The linear map from x to its scores, q Wk^T, and its bias: keys need not exist."""
        with no_autocast(x.device):
            q = self.unit_queries()
            if (
                isinstance(q, Tensor) and q.device != self.key.weight.device
            ):  # torch.cat would not say
                raise ValueError(
                    f"{type(self).__name__}: query must lie where key's weight does, got "
                    f"query.device={q.device} key.weight.device={self.key.weight.device}; try "
                    f"layer.to(device), which moves both"
                )
            wk = self.key.weight.to(q.dtype).unflatten(0, q.shape[1:])  # h d C
            matrix = (q.transpose(0, 1) @ wk).transpose(0, 1).flatten(0, 1)  # L h C
            bias = None
            if self.key.bias is not None:
                bias = torch.einsum("lhd,hd->lh", q, self.key.bias.to(q.dtype).view_as(q[0]))
                bias = bias.flatten().to(self.key.weight.dtype)
        return matrix.to(self.key.weight.dtype), bias

    def scores(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W L h"]:
        """The logit of each pixel for each query: x (q Wk^T), without keys where `key` is plain."""
        if untouched(x, self.key):
            s = F.linear(x, *self.score_map(x))
            return s.unflatten(-1, (self.queries, self.heads))
        keys = self.key(x).unflatten(-1, (self.heads, -1))
        return torch.einsum("bywhd,lhd->bywlh", keys, self.unit_queries().to(keys.dtype))

    def values(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W h d"]:
        return self.value(x).unflatten(-1, (self.heads, -1))

    def weights(
        self, x: Float[Tensor, "B H W C"], padding: Bool[Tensor, "B H W"] | None = None
    ) -> Float[Tensor, "B Ho Wo L h k k"]:
        """The softmax of each query over each window, before Ws. `view` draws this."""
        s = self.scores(x)
        if padding is not None:
            s = s.masked_fill(padding[..., None, None], hidden_logit(s))
        return ops.weights(s, self.rpe, self.stride, self.padding)

    def value_and_score_map(self, x: Float[Tensor, "B H W C"]) -> tuple[Tensor, Tensor | None]:
        """The linear map from x to its values and scores side by side, and its bias."""
        matrix, bias = self.score_map(x)
        bias = None if bias is None else torch.cat((self.value.bias, bias))
        return torch.cat((self.value.weight, matrix)), bias

    def aggregate(
        self, x: Float[Tensor, "B H W C"], fold: bool, padding: Bool[Tensor, "B H W"] | None = None
    ) -> Tensor:
        tables, options = (self.rpe, self.scale), (self.stride, self.padding, fold, self.backend)
        if padding is not None:  # places without image weigh nothing, and are nothing
            s, v, off = self.scores(x), self.values(x), padding[..., None, None]
            s, v = s.masked_fill(off, hidden_logit(s)), v.masked_fill(off, 0)
            return ops.aggregate(s, v, *tables, *options)
        if untouched(x, self.key, self.value) and _like_biased(self.key, self.value):
            return ops.gather(x, *self.value_and_score_map(x), *tables, *options)
        return ops.aggregate(self.scores(x), self.values(x), *tables, *options)

    def check(self, x: Float[Tensor, "B H W C"]) -> None:
        if torch.compiler.is_compiling() or isinstance(x, fx.Proxy):  # there, sizes are symbols
            return
        if min(x.shape[1:3]) + 2 * self.padding < self.window:
            raise ValueError(
                f"{type(self).__name__}: no window fits into the map, got {tuple(x.shape[1:3])} "
                f"pixels, window={self.window} padding={self.padding}; try a larger padding"
            )

    def on_map(
        self, x: Float[Tensor, "B H W C"], padding: Bool[Tensor, "B H W"] | None = None
    ) -> Float[Tensor, "B Ho Wo D"]:
        self.check(x)
        if padding is not None:
            return self.mix(self.aggregate(x, True, padding).flatten(3))
        plain = self.backend == "auto" and untouched(x, self.key, self.value, self.mix)
        if plain and _like_biased(self.key, self.value):
            tables, mix = (self.rpe, self.scale), (self.mix.weight, self.mix.bias)
            joined = self.value_and_score_map(x)
            return ops.attend(x, *joined, *tables, *mix, self.stride, self.padding)
        return self.mix(self.aggregate(x, fold=True).flatten(3))

    def on_prefix(
        self, head: Float[Tensor, "B p C"], x: Float[Tensor, "B H W C"],
        padding: Bool[Tensor, "B H W"] | None,
    ) -> Float[Tensor, "B p D"]:  # fmt: skip
        """One result for all prefix tokens: each query's attention over the whole map, averaged."""
        s = self.scores(x).flatten(1, 2)  # B N L h
        if padding is not None:
            s = s.masked_fill(padding.flatten(1)[..., None, None], hidden_logit(s))
        p = torch.softmax(s, 1, dtype=wide(s.dtype)).mean(2)
        v = self.values(x).flatten(1, 2)
        z = torch.einsum("bnh,bnhd->bhd", p.to(v.dtype), v).flatten(1)
        return self.mix(z)[:, None].expand(-1, head.shape[1], -1)

    def ready_after(self, x: Float[Tensor, "B H W C"], norm: Any) -> LearnedQueriesResidual | None:
        """x + self(norm(x)) as one call, for inference; None where modules must be called."""
        if self.stride != 1 or not untouched(x, self.mix) or len(self.mix.weight) != x.shape[3]:
            return None
        return self.ready_with(x, norm)

    def ready_with(
        self, x: Float[Tensor, "B H W C"], norm: Any, skip: ReadyConvolution | None = None
    ) -> LearnedQueriesResidual | None:
        """The same, or skip(x) + self(norm(x)) for another resolution or width."""
        key, value, mix = self.key, self.value, self.mix
        if type(self) is not LearnedQueryAttention or self.backend != "auto":
            return None
        if self.layout not in (None, "NHWC"):
            return None
        if not untouched(x, key, value, mix) or not of_channels(norm, x):
            return None
        window = len(self.rpe)
        if 2 * self.padding != window - 1 or window > WIDEST or not _like_biased(key, value):
            return None
        biases = [layer.bias for layer in (key, value) if layer.bias is not None]
        of_scores = [self.query, key.weight, value.weight, *biases]
        of_mix = [mix.weight, *([] if mix.bias is None else [mix.bias])]
        tables = [self.rpe, *([] if self.scale is None else [self.scale])]
        if not serves(*of_scores, *of_mix, norm.weight, norm.bias) or not all(map(dense, tables)):
            return None
        like = x.new_empty(0, 0, 0, x.shape[3])
        matrix, bias = self.value_and_score_map(like)
        options = mix.weight, mix.bias, self.stride, self.padding
        ops.ATTEND.check(x, matrix, bias, self.rpe, self.scale, *options)
        (J, C), (D, V) = matrix.shape, mix.weight.shape
        project = PixelProduct(J, C, of_scores, lambda: self.value_and_score_map(like))
        blend = PixelProduct(D, V, of_mix, lambda: (mix.weight, mix.bias))
        numbers = Norm(norm.weight, norm.bias, norm.eps)
        return LearnedQueriesResidual(
            numbers, project, blend, self.rpe, self.scale, self.padding, self.stride, skip
        )


class LearnedQueryUpsampling(LearnedQueryAttention):
    """Increase the resolution by `factor`: one query for each of a pixel's factor^2 new pixels.

    Eq. 4-5: the queries' results are not summed, there is no Ws, and query l = factor i + j gives
    the pixel in row i, column j of each block.
    """

    takes_prefix = False

    def __init__(
        self,
        dim: int,
        heads: int,
        window: int = 3,
        factor: int = 2,
        *,
        width: int | None = None,
        out_dim: int | None = None,
        bias: bool = False,
        normalize: bool = True,
        backend: str = "auto",
        layout: str | None = None,
        size: Sequence[int] | None = None,
    ):
        if factor < 1:
            raise ValueError(f"LearnedQueryUpsampling: factor must be at least 1, got {factor=}")
        super().__init__(
            dim, heads, window, 1, factor**2, width=width, out_dim=out_dim, bias=bias,
            normalize=normalize, scale=False, backend=backend, layout=layout, size=size,
        )  # fmt: skip
        self.factor = factor

    def on_map(
        self, x: Float[Tensor, "B H W C"], padding: Bool[Tensor, "B H W"] | None = None
    ) -> Float[Tensor, "B Hs Ws D"]:
        self.check(x)
        z = self.aggregate(x, False, padding).flatten(4)  # B H W L D
        z = z.unflatten(3, (self.factor, self.factor)).permute(0, 1, 3, 2, 4, 5)  # B H i W j D
        return self.mix(z.flatten(3, 4).flatten(1, 2))


@readable
class QnAFeedForward(FeedForward):
    """Widen four times, GELU in its tanh form, and back."""

    def __init__(self, dim: int):
        super().__init__(dim, 4 * dim, act=partial(nn.GELU, approximate="tanh"))

    def reset_parameters(self) -> None:
        for linear in (self.widen, self.narrow):
            lecun_normal_(linear.weight)
            nn.init.zeros_(linear.bias)


@walkable
class QnADown(nn.Module):
    """Halve the map and double its width: skip(x) + mix(norm x), then x + ffn(norm x).

    The skip is a strided 1x1 convolution. Drop path acts on the second half only: without `mix`,
    the next stage would get only every fourth pixel. NCHW in and out.
    """

    def __init__(self, dim: int, heads: int, window: int, queries: int, drop_path: float = 0.0):
        super().__init__()
        self.mix_norm = nn.LayerNorm(dim, eps=1e-6)
        self.mix = LearnedQueryAttention(
            dim, heads, window, 2, queries, width=2 * dim, layout="NHWC"
        )
        self.skip = Conv1x1(dim, 2 * dim, stride=2, bias=False)
        self.ffn_norm = nn.LayerNorm(2 * dim, eps=1e-6)
        self.ffn = QnAFeedForward(2 * dim)
        self.drop = DropPath(drop_path) if drop_path else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        lecun_normal_(self.skip.weight)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D Ho Wo"]:
        return whole(x, self, ready_way_down)

    def steps(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D Ho Wo"]:
        """Module by module."""
        skip = self.skip(x).permute(0, 2, 3, 1)
        x = skip + self.mix(self.mix_norm(x.permute(0, 2, 3, 1)))
        x = residual(x, self.ffn_norm, self.ffn, self.drop)
        return x.permute(0, 3, 1, 2)


class ReadyWayDown:
    """Both halves of `QnADown`, of maps that lie B H W C."""

    def __init__(self, mix: LearnedQueriesResidual, ffn: FeedResidual):
        self.mix, self.ffn = mix, ffn

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B h w D"]:
        return self.ffn(self.mix(x))


def ready_way_down(x: Float[Tensor, "B H W C"], layer: QnADown) -> ReadyWayDown | None:
    """The call for a down-sampling layer; None where modules must be called."""
    skip, mix = layer.skip, layer.mix
    if type(skip) is not ProductConv2d or not untouched(x, skip, mix, layer.ffn):
        return None
    if not passes(layer.drop) or not is_square(skip) or skip.kernel_size != (1, 1):
        return None
    if skip.padding != (0, 0) or skip.stride != (mix.stride,) * 2:
        return None
    of_skip = ReadyConvolution(product_of(skip), 1, mix.stride)
    if len(skip.weight) != len(mix.mix.weight) or skip.weight.shape[1:] != (x.shape[3], 1, 1):
        return None
    first = mix.ready_with(x, layer.mix_norm, of_skip)
    y = x.new_empty(1, 1, 1, len(skip.weight))
    second = None if first is None else layer.ffn.ready_after(y, layer.ffn_norm)
    return None if first is None or second is None else ReadyWayDown(first, second)


def _like_biased(key: nn.Module, value: nn.Module) -> bool:
    """Whether both have a bias or neither: then one product makes values and scores."""
    return (key.bias is None) == (value.bias is None)


def _check(
    name: str, width: int, heads: int, window: int, stride: int, queries: int,
    padding: int | None, backend: str,
) -> None:  # fmt: skip
    if heads < 1 or width % heads:
        raise ValueError(f"{name}: heads must divide width, got {width=} {heads=}")
    if window < 1 or (window % 2 == 0 and padding is None):
        raise ValueError(
            f"{name}: a window has a pixel in its middle, so its side must be odd, got {window=}; "
            f"try {max(window - 1, 1)} or {max(window + 1, 3)}, or say which padding"
        )
    if stride < 1 or queries < 1:
        raise ValueError(f"{name}: stride and queries start at 1, got {stride=} {queries=}")
    if padding is not None and not 0 <= padding < window:
        raise ValueError(
            f"{name}: padding must be from 0 to window - 1, or some windows see nothing, "
            f"got {padding=} {window=}"
        )
    forms = ("auto", *ops.AGGREGATE.forms)
    if backend not in forms:
        raise ValueError(f"{name}: backend must be one of {forms}, got {backend=}")


# -- the authors' weights -------------------------------------------------------------------------


def flax_entries(layer: LearnedQueryAttention) -> flax.Entries:
    """The parameters of the authors' FusedKQnA; the tables are (k^2, L h) there."""
    table, bias = layer.rpe.shape, layer.key.bias is not None

    def to_ours(t: Tensor) -> Tensor:
        return t.reshape(table)

    entries = {
        "query": flax.Entry("query"),
        "Wk": flax.Entry("key.weight", lambda t: t.mT, lambda t: t.mT),
        **flax.linear("to_v", "value", bias),
        **flax.linear("to_out", "mix", bias),
        "rpe_bias": flax.Entry("rpe", to_ours, lambda t: t.flatten(2).flatten(0, 1)),
    }
    if layer.scale is not None:
        to_theirs = lambda t: t.flatten(2).flatten(0, 1)[None, None]  # noqa: E731
        entries["attn_scale_weights"] = flax.Entry("scale", to_ours, to_theirs)
    if bias:
        heads = (layer.heads, -1)
        entries["Wk_b"] = flax.Entry("key.bias", lambda t: t.flatten(), lambda t: t.view(heads))
    return entries


def from_flax(params: Mapping[str, Any], config: Mapping[str, Any]) -> LearnedQueryAttention:
    """The layer that the authors' FusedKQnA is, from its parameters ("query", "to_v/kernel", ...).

    config  cin, feat, h (heads), k, s (stride), L (queries), and where they are not the authors'
            defaults: padding, normalize_q, use_bias, attn_scale ("normal" or "none"), out_features
    """
    scale = config.get("attn_scale", "normal")
    if scale not in ("normal", "none"):
        raise ValueError(f"from_flax: attn_scale must be 'normal' or 'none', got {scale!r}")
    layer = LearnedQueryAttention(
        config["cin"], config["h"], config["k"], config["s"], config["L"],
        width=config["feat"],
        out_dim=config.get("out_features"),
        bias=config.get("use_bias", False),
        padding=config.get("padding"),
        normalize=config.get("normalize_q", True),
        scale=scale == "normal",
    )  # fmt: skip
    flax.load(layer, flax_entries(layer), params, "the layer")
    return layer
