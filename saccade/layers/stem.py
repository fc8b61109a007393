"""Layers that change the resolution: NCHW in, NCHW out, ceil(size / stride) on each side."""

from jaxtyping import Float
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.init import lecun_normal_
from saccade.layers.ready import normed


class ConvDown(nn.Module):
    """An overlapping convolution, then LayerNorm: LinGlo's way down."""

    def __init__(self, dim: int, out: int, kernel: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, out, kernel, stride, padding=kernel // 2)
        self.norm = LayerNorm2d(out)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return normed(self.conv(x), self.norm)


class FineStem(nn.Module):
    """A 3 x 3 convolution at full resolution, for images of few pixels."""

    def __init__(self, dim: int, out: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.act = nn.ReLU()

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        return self.act(self.norm(self.conv(x)))


class PatchDown(nn.Module):
    """Non-overlapping patches, then LayerNorm; the last patches are filled up with zeros."""

    def __init__(self, dim: int, out: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(dim, out, stride, stride)
        self.norm = LayerNorm2d(out)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return normed(self.conv(fill(x, self.stride)), self.norm)


class Patches(nn.Conv2d):
    """Non-overlapping patches and nothing else: QnA's stem. Zeros fill the last ones.

    It is built like nn.Conv2d, for those who make a second one of its type (adapters do).
    """

    def reset_parameters(self) -> None:
        lecun_normal_(self.weight)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        more = self.stride[0] - 1  # zeros for the last patches; a patch of zeros alone is not begun
        return super().forward(F.pad(input, (0, more, 0, more)))


def fill(x: Float[Tensor, "B C H W"], side: int) -> Float[Tensor, "B C h w"]:
    """Zeros below and to the right until `side` divides the map."""
    H, W = x.shape[2:]
    h, w = (H + side - 1) // side, (W + side - 1) // side
    return F.pad(x, (0, w * side - W, 0, h * side - H))
