"""A picture with more pixels (super-resolution), by the blocks of each paper.

    f = conv(x)
    y = bicubic(x) + conv(up(f + conv(blocks(f))))

    blocks  linglo   x + KeyOnlyAttention(LN x),  x + FFN(LN x) with RP-CPE between its layers
            qna      x + QnA(LN x),  x + FFN(LN x); windows of 3 x 3, two queries
            conv     x + conv(relu(conv(x))), as EDSR has it: what to compare with at equal size
    up      shuffle  a 3x3 convolution to factor^2 times the channels, which become pixels
            qna      QnA's up-sampler: a learned query for each new pixel, which begins as
                     bilinear interpolation (begun as a mean of its window, it stays a blur)

LinGlo's authors name super-resolution as what they would try next; QnA's show the up-sampler in an
auto-encoder. The network around both is the field's plainest. It has no BatchNorm, not even in
RP-CPE's branches: statistics of a batch change the brightness of a patch.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.block import Block, FeedForward
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling, QnAFeedForward
from saccade.models.autoencoder import begin_bilinear

BODIES, WAYS_UP, FACTORS = ("linglo", "qna", "conv"), ("shuffle", "qna"), (2, 3, 4)
HEAD = 8  # channels of a head
EXPAND = 4  # hidden channels of LinGlo's feed-forward, for each of the map's


class ConvBlock(nn.Module):
    """x + conv(relu(conv(x))): EDSR's residual block, without a norm."""

    def __init__(self, dim: int):
        super().__init__()
        self.first = nn.Conv2d(dim, dim, 3, padding=1)
        self.second = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        return x + self.second(F.relu(self.first(x)))


class QnAUp(nn.Module):
    """QnA's up-sampler between maps that are NCHW."""

    def __init__(self, dim: int, factor: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mix = LearnedQueryUpsampling(dim, dim // HEAD, 3, factor, layout="NHWC")
        begin_bilinear(self.mix)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C Hs Ws"]:
        return self.mix(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def _block(body: str, dim: int) -> nn.Module:
    if body == "conv":
        return ConvBlock(dim)
    if body == "qna":
        mix: nn.Module = LearnedQueryAttention(dim, dim // HEAD, layout="NHWC")
        return Block(dim, mix, QnAFeedForward(dim))
    mix = KeyOnlyAttention(dim, dim // HEAD, layout="NHWC")
    position = RPCPE(EXPAND * dim, norm=False)
    return Block(dim, mix, FeedForward(dim, EXPAND * dim, position))


def _up(up: str, dim: int, factor: int) -> nn.Module:
    if up == "qna":
        return QnAUp(dim, factor)
    conv = nn.Conv2d(dim, factor**2 * dim, 3, padding=1)
    return nn.Sequential(conv, nn.PixelShuffle(factor))


class Upscaler(nn.Module):
    """An image in 0..1 to one with `factor` times the pixels a side."""

    def __init__(
        self,
        factor: int = 2,
        body: str = "linglo",
        up: str = "shuffle",
        dim: int = 32,
        depth: int = 6,
        in_chans: int = 3,
    ):
        super().__init__()
        for what, kind, choices in (
            ("factor", factor, FACTORS), ("body", body, BODIES), ("up", up, WAYS_UP),
        ):  # fmt: skip
            if kind not in choices:
                raise ValueError(f"Upscaler: {what} must be one of {choices}, got {kind!r}")
        if dim < HEAD or dim % HEAD:
            raise ValueError(f"Upscaler: dim must be a multiple of {HEAD}, got {dim=}")
        self.arguments: dict[str, Any] = {
            "factor": factor, "body": body, "up": up, "dim": dim, "depth": depth,
            "in_chans": in_chans,
        }  # fmt: skip
        self.factor = factor
        self.stem = nn.Conv2d(in_chans, dim, 3, padding=1)
        self.blocks = nn.Sequential(*(_block(body, dim) for _ in range(depth)))
        self.join = nn.Conv2d(dim, dim, 3, padding=1)
        steps = (2, 2) if factor == 4 else (factor,)
        self.up = nn.Sequential(*(_up(up, dim, step) for step in steps))
        self.colour = nn.Conv2d(dim, in_chans, 3, padding=1)
        for parameter in self.colour.parameters():  # it begins as PyTorch's bicubic interpolation
            nn.init.zeros_(parameter)
        self.default_cfg: dict[str, Any] = {
            "architecture": "upscaler", "input_size": (in_chans, 96, 96),
            "mean": (0.0,) * in_chans, "std": (1.0,) * in_chans,
        }  # fmt: skip

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C Hs Ws"]:
        maps = self.stem(image - 0.5)
        maps = maps + self.join(self.blocks(maps))
        return self.colour(self.up(maps)) + bicubic(image, self.factor)

    def group_matcher(self, coarse: bool = False) -> dict:
        """timm's names of what comes after what."""
        return {"stem": r"^stem", "blocks": r"^blocks\.(\d+)"}

    def describe(self) -> dict[str, Any]:
        """What `build` makes this net of again."""
        return {"kind": "upscaler", **self.arguments}


def bicubic(image: Float[Tensor, "B C H W"], factor: int) -> Float[Tensor, "B C Hs Ws"]:
    """What the network adds to: PyTorch's bicubic interpolation (a = -3/4)."""
    if torch.compiler.is_exporting():  # by its sizes, a graph would hold for one size only
        return F.interpolate(image, scale_factor=float(factor), mode="bicubic")
    H, W = image.shape[2:]
    return F.interpolate(image, (factor * H, factor * W), mode="bicubic")


def smaller(image: Float[Tensor, "B C H W"], factor: int) -> Float[Tensor, "B C h w"]:
    """The copy that the field measures on: bicubic over factor^2 pixels each, in 8 bits."""
    H, W = image.shape[2:]
    image = image[:, :, : H - H % factor, : W - W % factor]
    size = H // factor, W // factor
    small = F.interpolate(image.float(), size, mode="bicubic", antialias=True)
    return small.mul(255).round().clamp(0, 255).div(255)


def build(**arguments: Any) -> Upscaler:
    return Upscaler(**arguments)
