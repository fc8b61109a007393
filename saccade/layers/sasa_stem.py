"""The first layers of SASA's networks: image to map, at a quarter of the resolution.

The attention stem (appendix A.1) attends inside each block of 4 x 4 pixels, norms, and takes the
maximum over each block. Values know their place in the block, as the taps of a convolution do:

    v_ab = sum over m of  p(a, b, m) Wv^m x_ab                                       (8)
    p(a, b, m) = softmax over m of  (emb_row(a) + emb_col(b)) . nu^m                 (9)
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.stem import fill
from saccade.ops.sasa import BORDERS
from saccade.ops.sasa_block import block_attention


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

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        H, W = x.shape[2:]
        x, p, s = fill(x, self.side), self.shares(), self.side
        if self.form == "mixed":
            maps = F.conv2d(x, self.weight.flatten(0, 1)[:, :, None, None])
            maps = maps.unflatten(3, (-1, s)).unflatten(2, (-1, s))
            maps = maps.unflatten(1, self.weight.shape[:2])  # B m D y a x b
            y = torch.einsum("bmdyixj,ijm->bdyixj", maps, p.to(maps.dtype))
        else:
            weight = torch.einsum("ijm,mdc->ijdc", p, self.weight)
            x = x.unflatten(3, (-1, s)).unflatten(2, (-1, s))  # B C y a x b
            y = torch.einsum("bcyixj,ijdc->bdyixj", x, weight)
        return y.flatten(4, 5).flatten(2, 3)[:, :, :H, :W]


class Taps(nn.Conv2d):
    """Values by an s x s convolution of stride 1, on the same grid (Table 7)."""

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        before = (self.kernel_size[0] - 1) // 2
        after = self.kernel_size[0] - 1 - before
        return super().forward(F.pad(input, (before, after, before, after)))


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
            self.value = Taps(dim, out, 1 if values == "pointwise" else side, bias=False)
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

    def attend(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        """At the image's own resolution."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        return block_attention(q, k, v, self.row, self.col, self.heads, self.side, self.border)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return F.max_pool2d(self.norm(self.attend(x)), self.side, ceil_mode=True)
