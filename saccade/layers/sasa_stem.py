"""The first layers of SASA's networks: image to map, at a quarter of the resolution.

The attention stem (appendix A.1) attends inside each block of 4 x 4 pixels, norms, and takes the
maximum over each block. Values depend on their place in the block, as in a convolution:

    v_ab = sum over m of  p(a, b, m) Wv^m x_ab                                       (8)
    p(a, b, m) = softmax over m of  (emb_row(a) + emb_col(b)) . nu^m                 (9)
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.norm import is_scale_and_shift, scale_and_shift
from saccade.layers.ready import whole
from saccade.layers.stem import is_square
from saccade.layers.untouched import passes, plain, pointwise, readable, untouched
from saccade.layers.walk import walkable
from saccade.ops import sasa_block as ops
from saccade.ops.native.pixels import PixelProduct, ReadyConvolution
from saccade.ops.native.residual import serves
from saccade.ops.native.sasa_block import SIDE, BlocksMaximum, takes_blocks
from saccade.ops.sasa import BORDERS


@walkable
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
        return whole(x, self, ready_conv_stem)

    def steps(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Module by module."""
        return self.pool(self.act(self.norm(self.conv(x))))


def ready_conv_stem(x: Float[Tensor, "B H W C"], stem: ConvStem) -> ReadyConvolution | None:
    """The call for a stem without a maximum; None where modules must be called."""
    conv, norm = stem.conv, stem.norm
    if type(conv) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d or not passes(stem.pool):
        return None
    if not untouched(x, conv, norm) or not is_square(conv):
        return None
    if not is_scale_and_shift(norm, len(conv.weight)) or not plain(stem.act, nn.ReLU):
        return None
    parts = [conv.weight, *norm.parameters(), *norm.buffers()]
    if conv.bias is not None or not serves(*(t for t in parts[1:] if t.is_floating_point())):
        return None

    def matrix() -> tuple[Tensor, Tensor]:
        scale, shift = scale_and_shift(norm)
        return conv.weight.permute(0, 2, 3, 1).flatten(1) * scale[:, None], shift

    numbers = [t for t in parts if t.is_floating_point()]
    product = PixelProduct(len(conv.weight), conv.weight[0].numel(), numbers, matrix, relu=True)
    return ReadyConvolution(product, conv.kernel_size[0], conv.stride[0], int(conv.padding[0]))


@readable
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


@walkable
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
        self.mixed = values == "mixture"
        self.query = nn.Conv2d(dim, out, 1, bias=False)
        self.key = nn.Conv2d(dim, out, 1, bias=False)
        if self.mixed:
            self.value: nn.Module = Mixture(dim, out, side, mixtures)
        else:
            self.value = nn.Conv2d(dim, out, side if values == "conv" else 1, bias=False)
        self.reach = side - 1 if values == "conv" else 0  # pixels that a value sees beside its own
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
        if self.mixed:
            return self.value(blocks)
        around = (self.reach // 2, self.reach - self.reach // 2)
        return ops.cut(self.value(F.pad(x, around * 2)), self.side)

    def letters(self, x: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Wq, Wk and Wv of every place, if these determine all that the stem computes."""
        query, key, value = self.query, self.key, self.value
        if not (pointwise(query) and pointwise(key) and untouched(x, query, key, value)):
            return None
        if isinstance(value, Mixture) and value.form == "merged":
            wv = value.merged()
        elif pointwise(value):
            wv = value.weight.flatten(1).expand(self.side**2, -1, -1)
        else:
            return None
        return query.weight.flatten(1), key.weight.flatten(1), wv

    def attend(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        """At the image's own resolution."""
        mask, letters = self.border == "mask", self.letters(x)
        if letters is not None:
            return ops.attend(x, *letters, self.row, self.col, self.heads, mask)
        blocks, q, k = (ops.cut(t, self.side) for t in (x, self.query(x), self.key(x)))
        hidden = ops.outside(x, self.side) if mask else None
        y = ops.block_attention(
            q, k, self.values(x, blocks), self.row, self.col, self.heads, hidden
        )  # fmt: skip
        return ops.join(y, *x.shape[2:])

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return whole(x, self, ready_attention_stem)

    def steps(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """By operators, or module by module."""
        letters = self.normed_letters(x)
        if letters is not None:
            wq, wk, wv, scale, shift = letters
            return ops.maximum_of_blocks(
                x, wq, wk, wv, self.row, self.col, scale, shift, self.heads, self.border == "mask"
            )
        return ops.maximum(self.norm(self.attend(x)), self.side)

    def normed_letters(
        self, x: Float[Tensor, "B C H W"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
        """`letters`, and the norm's scale and shift; None where the norm does more than that.

        Nor where a gradient is to come.
        """
        if torch.is_grad_enabled() or torch.jit.is_tracing():  # a trace must hold for both
            return None
        if type(self.norm) is not nn.BatchNorm2d or not untouched(x, self.norm):
            return None
        letters = self.letters(x)
        if letters is None or not is_scale_and_shift(self.norm, len(letters[0])):
            return None
        return *letters, *scale_and_shift(self.norm)


def ready_attention_stem(x: Float[Tensor, "B H W C"], stem: AttentionStem) -> BlocksMaximum | None:
    """The call for a stem with its norm and maximum; None where modules must be called."""
    image, mask = x.permute(0, 3, 1, 2), stem.border == "mask"
    letters = stem.normed_letters(image)
    if type(stem) is not AttentionStem or letters is None or stem.side != SIDE:
        return None
    numbers = [t for t in (*stem.parameters(), *stem.buffers()) if t.is_floating_point()]
    if not serves() or any(t.dtype != torch.float32 or t.is_neg() for t in numbers):
        return None
    *projections, scale, shift = letters
    ops.MAXIMUM_OF_BLOCKS.check(
        image, *projections, stem.row, stem.col, scale, shift, stem.heads, mask
    )
    if len(projections[2]) != SIDE**2 or not takes_blocks(*projections[0].shape, stem.heads):
        return None

    def weights() -> tuple[Tensor, ...]:
        letters = stem.normed_letters(image)
        if letters is None:
            raise RuntimeError("AttentionStem: its projections cannot be read any more")
        return letters

    return BlocksMaximum(
        numbers, weights, stem.row, stem.col, outputs=len(scale), heads=stem.heads, mask=mask
    )
