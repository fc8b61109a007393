"""The auto-encoder of QnA's supplement, section 7: five down-sampling and five up-sampling layers.

    encoder  conv       3x3 convolution with stride 2, instance norm           ConvS2-IN
             max        3x3 convolution, instance norm, maximum of 2x2         Conv-IN-Max
             qna        layer norm, 3x3 QnA of one query with stride 2         LN-QnA
    decoder  bilinear   x2 bilinear, 3x3 convolution, instance norm            Bilinear-Conv-IN
             transpose  transposed convolution (4x4, stride 2), instance norm  ConvTranspose-IN
             qna        layer norm, 3x3 up-sampling QnA                        LN-UQnA

The supplement prints neither widths nor the layers between colours and channels. Here every net has
a 3x3 convolution at both ends, widths that double up to eight times the first, and a ReLU after
each instance norm; QnA layers have none, because their softmax is non-linear already.

Up-sampling QnA begins "even", as QnA does: its position table is 0 and each new pixel is about the
mean of its window, so that five such layers blur the image for many steps of training. It may begin
"bilinear" instead: with the logarithm of bilinear weights in the table.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
from saccade.layers.semantic import top_left

LEVELS = 5
STEP = 2**LEVELS
LEAST = 2 * STEP  # pixels a side: an instance of one pixel has no variance
ENCODERS, DECODERS = ("conv", "max", "qna"), ("bilinear", "transpose", "qna")
STARTS = ("even", "bilinear")
HEAD = 8  # channels of a QnA head


class Attend(nn.Module):
    """Layer norm and QnA, NCHW in and out."""

    def __init__(self, dim: int, mix: LearnedQueryAttention):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mix = mix

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D Ho Wo"]:
        return self.mix(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def _normed(dim: int) -> list[nn.Module]:
    return [nn.InstanceNorm2d(dim, affine=True), nn.ReLU()]


def down(kind: str, dim: int, out: int) -> nn.Module:
    """Halve the map."""
    if kind == "qna":
        mix = LearnedQueryAttention(dim, _heads(out), 3, 2, queries=1, width=out, layout="NHWC")
        return Attend(dim, mix)
    if kind == "conv":
        return nn.Sequential(nn.Conv2d(dim, out, 3, 2, padding=1, bias=False), *_normed(out))
    conv = nn.Conv2d(dim, out, 3, padding=1, bias=False)
    return nn.Sequential(conv, *_normed(out), nn.MaxPool2d(2))


def up(kind: str, dim: int, out: int, start: str = "even") -> nn.Module:
    """Double the map."""
    if kind == "qna":
        mix = LearnedQueryUpsampling(dim, _heads(out), 3, 2, width=out, layout="NHWC")
        if start == "bilinear":
            begin_bilinear(mix)
        return Attend(dim, mix)
    if kind == "transpose":
        conv = nn.ConvTranspose2d(dim, out, 4, 2, padding=1, bias=False)
        return nn.Sequential(conv, *_normed(out))
    raise_ = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return nn.Sequential(raise_, nn.Conv2d(dim, out, 3, padding=1, bias=False), *_normed(out))


@torch.no_grad()
def begin_bilinear(mix: LearnedQueryUpsampling) -> None:
    """Set the position table so that each new pixel begins close to bilinear interpolation."""
    at = (torch.arange(mix.factor, device=mix.rpe.device) + 0.5) / mix.factor - 0.5
    places = torch.arange(mix.window, device=at.device) - mix.window // 2
    side = (1 - (at[:, None] - places).abs()).clamp(min=0)  # new pixel, place
    near = torch.einsum("iy,jx->yxij", side, side).flatten(2)  # query factor i + j
    mix.rpe.copy_((near + 1 / 64).log()[..., None].expand_as(mix.rpe))


def _heads(dim: int) -> int:
    return max(dim // HEAD, 1)


class AutoEncoder(nn.Module):
    """Encoder and decoder: an image in 0..1 to a small map of many channels, and back."""

    def __init__(
        self,
        encoder: str = "qna",
        decoder: str = "qna",
        dim: int = 32,
        in_chans: int = 3,
        start: str = "even",
    ):
        super().__init__()
        for what, kind, choices in (
            ("encoder", encoder, ENCODERS), ("decoder", decoder, DECODERS),
            ("start", start, STARTS),
        ):  # fmt: skip
            if kind not in choices:
                raise ValueError(f"AutoEncoder: {what} must be one of {choices}, got {kind!r}")
        if dim % HEAD:
            raise ValueError(f"AutoEncoder: dim must be a multiple of {HEAD}, got {dim=}")
        self.arguments: dict[str, Any] = {
            "encoder": encoder, "decoder": decoder, "dim": dim, "in_chans": in_chans,
            "start": start,
        }  # fmt: skip
        self.widths = [dim * min(2**i, 8) for i in range(LEVELS + 1)]
        self.stem = nn.Conv2d(in_chans, dim, 3, padding=1)
        wide = self.widths
        self.encoder = nn.Sequential(*(down(encoder, wide[i], wide[i + 1]) for i in range(LEVELS)))
        self.decoder = nn.Sequential(
            *(up(decoder, wide[i + 1], wide[i], start) for i in reversed(range(LEVELS)))
        )
        self.colour = nn.Conv2d(dim, in_chans, 3, padding=1)
        self.default_cfg: dict[str, Any] = {
            "architecture": "autoencoder", "input_size": (in_chans, 256, 256),
            "mean": (0.0,) * in_chans, "std": (1.0,) * in_chans,
        }  # fmt: skip

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """The code of an image: a pixel for each 32 x 32; sides must be multiples of 32."""
        return self.encoder(self.stem(2 * image - 1))

    def decode(self, code: Float[Tensor, "B D h w"]) -> Float[Tensor, "B C H W"]:
        return (self.colour(self.decoder(code)) + 1) / 2

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Reconstruct an image; sides are padded to multiples of 32, and to 64 at least."""
        H, W = image.shape[2:]
        whole = [max((side + STEP - 1) // STEP * STEP, LEAST) for side in (H, W)]
        beyond = (0, whole[1] - W, 0, whole[0] - H)
        if torch.compiler.is_exporting() or any(beyond):  # an exported graph must serve every size
            image = F.pad(image, beyond, mode="replicate")
        return top_left(self.decode(self.encode(image)), (H, W))

    def group_matcher(self, coarse: bool = False) -> dict:
        """timm's patterns that order parameters by depth."""
        return {
            "stem": r"^stem",
            "blocks": r"^encoder\.(\d+)",
        }

    def describe(self) -> dict[str, Any]:
        """The arguments from which `build` makes this network again."""
        return {"kind": "autoencoder", **self.arguments}


def build(**arguments: Any) -> AutoEncoder:
    return AutoEncoder(**arguments)
