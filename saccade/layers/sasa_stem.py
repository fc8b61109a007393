"""The first layers of SASA's networks: image to map, at a quarter of the resolution.

The attention stem (appendix A.1) attends inside each block of 4 x 4 pixels, norms, and takes the
maximum over each block. Values know their place in the block, as the taps of a convolution do:

    v_ab = sum over m of  p(a, b, m) Wv^m x_ab                                       (8)
    p(a, b, m) = softmax over m of  (emb_row(a) + emb_col(b)) . nu^m                 (9)
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.bare import bare, pointwise
from saccade.layers.norm import is_scale_and_shift, scale_and_shift
from saccade.ops import sasa_block as ops
from saccade.ops.sasa import BORDERS


class ConvStem(nn.Module):
    """ResNet's: a 7 x 7 convolution of stride 2 and, for stride 4, a 3 x 3 maximum of stride 2."""

    def __init__(self, dim: int, out: int = 64, stride: int = 4):
        super().__init__()
        if stride not in (2, 4):
            raise ValueError(f"ConvStem: stride must be 2 or 4, got {stride=}")
        self.conv = nn.Conv2d(dim, out, 7, 2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, padding=1) if stride == 4 else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return self.pool(self.act(self.norm(self.conv(x))))


class Mixture(nn.Module):
    """A linear map that depends on a pixel's place in its block: eq. 8-9.

    In "mixed" form, as printed, every map is applied to every pixel and the results are mixed. In
    "merged" form the maps are mixed first: one for each of the s x s places, m times less to do.
    """

    printed = "mixed"
    undecayed = ("row", "col", "nu")

    def __init__(self, dim: int, out: int, side: int, mixtures: int = 5, embed: int = 16):
        super().__init__()
        self.side, self.form = side, "merged"
        self.weight = nn.Parameter(torch.empty(mixtures, out, dim))  # Wv^m
        self.row = nn.Parameter(torch.empty(side, embed))
        self.col = nn.Parameter(torch.empty(side, embed))
        self.nu = nn.Parameter(torch.empty(mixtures, embed))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The logits of the mixture have unit variance, so places differ from the first step."""
        nn.init.normal_(self.weight, std=self.weight.shape[2] ** -0.5)
        for table in (self.row, self.col):
            nn.init.normal_(table, std=0.5**0.5)
        nn.init.normal_(self.nu, std=self.nu.shape[1] ** -0.5)

    def shares(self) -> Float[Tensor, "a b m"]:
        """p(a, b, m)."""
        return ((self.row[:, None] + self.col) @ self.nu.mT).softmax(-1)

    def merged(self) -> Float[Tensor, "n D C"]:
        """The map of each place of a block."""
        return torch.einsum("nm,mdc->ndc", self.shares().flatten(0, 1), self.weight)

    def forward(self, x: Float[Tensor, "B y x n C"]) -> Float[Tensor, "B y x n D"]:
        """Of pixels in blocks."""
        if self.form == "mixed":
            p = self.shares().flatten(0, 1)  # n m
            maps = F.linear(x, self.weight.flatten(0, 1)).unflatten(4, self.weight.shape[:2])
            return torch.einsum("byxnmd,nm->byxnd", maps, p.to(maps.dtype))
        return torch.einsum("byxnc,ndc->byxnd", x, self.merged())


VALUES = ("mixture", "pointwise", "conv")


class AttentionStem(nn.Module):
    """Attend inside blocks of `side` x `side` pixels, norm, and keep the maximum of each block.

    values    where v comes from (Table 7): "mixture", eq. 8-9; "pointwise", as k does, the
              stand-alone layer itself; "conv", a convolution as wide as a block
    position  "relative" or "none". The paper does not say whether the stem has a position term;
              the FLOPs of its Table 7 say that it has
    """

    def __init__(
        self,
        dim: int,
        out: int = 64,
        *,
        heads: int = 4,
        side: int = 4,
        values: str = "mixture",
        mixtures: int = 5,
        border: str = "zero",
        position: str = "relative",
    ):
        super().__init__()
        if heads < 1 or out % (2 * heads):
            raise ValueError(
                f"AttentionStem: heads must divide out into even widths, got {out=} {heads=}"
            )
        if values not in VALUES:
            raise ValueError(f"AttentionStem: values must be one of {VALUES}, got {values=}")
        if border not in BORDERS:
            raise ValueError(f"AttentionStem: border must be one of {BORDERS}, got {border=}")
        if position not in ("relative", "none"):
            raise ValueError(
                f"AttentionStem: position must be 'relative' or 'none', got {position=}"
            )
        self.heads, self.side, self.border = heads, side, border
        self.query = nn.Conv2d(dim, out, 1, bias=False)
        self.key = nn.Conv2d(dim, out, 1, bias=False)
        if values == "mixture":
            self.value: nn.Module = Mixture(dim, out, side, mixtures)
        else:
            self.value = nn.Conv2d(dim, out, side if values == "conv" else 1, bias=False)
        self.row = self.col = None
        if position == "relative":
            shape = (2 * side - 1, out // heads // 2)
            self.row, self.col = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
            self.undecayed = ("row", "col")
        self.norm = nn.BatchNorm2d(out)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for conv in (self.query, self.key, self.value):
            if isinstance(conv, nn.Conv2d):
                nn.init.normal_(conv.weight, std=conv.weight[0].numel() ** -0.5)
        for table in (self.row, self.col):
            if table is not None:
                nn.init.normal_(table, std=(2 * table.shape[1]) ** -0.5)

    def values(
        self, x: Float[Tensor, "B C H W"], blocks: Float[Tensor, "B y x n C"]
    ) -> Float[Tensor, "B y x n D"]:
        if isinstance(self.value, Mixture):
            return self.value(blocks)
        reach = cast(nn.Conv2d, self.value).kernel_size[0] - 1
        around = (reach // 2, reach - reach // 2)
        return ops.cut(self.value(F.pad(x, around * 2)), self.side)

    def letters(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Wq, Wk and Wv of every place, if those say all that is done to the image."""
        query, key, value = self.query, self.key, self.value
        if not (pointwise(query) and pointwise(key)):
            return None
        if bare(value, Mixture) and value.form == "merged":
            wv = value.merged()
        elif pointwise(value):
            wv = value.weight.flatten(1).expand(self.side**2, -1, -1)
        else:
            return None
        return query.weight.flatten(1), key.weight.flatten(1), wv

    def fuses(self, x: Float[Tensor, "B C H W"]) -> bool:
        """Whether the kernel takes such an image."""
        query = self.query
        return pointwise(query) and ops.fuses(x, query.weight.flatten(1), self.heads, self.side)

    def attend(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        """At the image's own resolution."""
        mask = self.border == "mask"
        letters = self.letters() if self.fuses(x) else None
        if letters is not None:
            return ops.attend(x, *letters, self.row, self.col, self.heads, mask)
        blocks = ops.cut(x, self.side)
        q, k = (F.linear(blocks, conv.weight.flatten(1)) for conv in (self.query, self.key))
        v = self.values(x, blocks)
        hidden = ops.outside(x, self.side) if mask else None
        y = ops.block_attention(q, k, v, self.row, self.col, self.heads, hidden)
        return ops.join(y, *x.shape[2:])

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        at_once = self._at_once(x)
        if at_once is not None:
            return at_once
        return F.max_pool2d(self.norm(self.attend(x)), self.side, ceil_mode=True)

    def _at_once(self, x: Float[Tensor, "B C H W"]) -> Tensor | None:
        """All of it by one kernel, where no gradient is to come and the norm is a mere scale."""
        norm = self.norm
        if torch.is_grad_enabled() or not (bare(norm, nn.BatchNorm2d) and is_scale_and_shift(norm)):
            return None
        letters = self.letters() if self.fuses(x) else None
        if letters is None:
            return None
        return ops.maximum_of_blocks(
            x, *letters, self.row, self.col, *scale_and_shift(norm),
            self.heads, self.border == "mask",
        )  # fmt: skip
