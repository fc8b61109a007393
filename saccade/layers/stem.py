"""Layers that change the resolution: NCHW in, NCHW out, ceil(size / stride) on each side."""

from jaxtyping import Float
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.init import lecun_normal_
from saccade.layers.norm import of_channels
from saccade.layers.ready import normed, whole
from saccade.layers.untouched import readable, untouched
from saccade.layers.walk import walkable
from saccade.ops.native.pixels import PixelProduct, ReadyConvolution
from saccade.ops.native.residual import Norm, dense, serves


@walkable
class ConvDown(nn.Module):
    """An overlapping convolution, then LayerNorm: LinGlo's down-sampling."""

    def __init__(self, dim: int, out: int, kernel: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, out, kernel, stride, padding=kernel // 2)
        self.norm = LayerNorm2d(out)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return whole(x, self, ready_down)

    def steps(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Module by module."""
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


@walkable
class PatchDown(nn.Module):
    """Non-overlapping patches, then LayerNorm; the last patches are filled up with zeros."""

    def __init__(self, dim: int, out: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(dim, out, stride, stride)
        self.norm = LayerNorm2d(out)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return normed(self.conv(fill(x, self.stride)), self.norm)


@readable
class Patches(nn.Conv2d):
    """Non-overlapping patches and nothing else: QnA's stem. Zeros fill the last ones.

    It is built like nn.Conv2d, for those who make a second one of its type (adapters do).
    """

    def reset_parameters(self) -> None:
        lecun_normal_(self.weight)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return whole(input, self, ready_patches)

    def steps(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """By PyTorch's convolution."""
        more = self.stride[0] - 1  # zeros for the last patches; a patch of zeros alone is not begun
        return super().forward(F.pad(input, (0, more, 0, more)))


def fill(x: Float[Tensor, "B C H W"], side: int) -> Float[Tensor, "B C h w"]:
    """Zeros below and to the right until `side` divides the map."""
    H, W = x.shape[2:]
    h, w = (H + side - 1) // side, (W + side - 1) // side
    return F.pad(x, (0, w * side - W, 0, h * side - H))


# -- for inference --------------------------------------------------------------------------------


def product_of(conv: nn.Conv2d, relu: bool = False) -> PixelProduct:
    """The product that a convolution is, of squares of pixels."""
    weight, bias = conv.weight, conv.bias
    return PixelProduct(
        len(weight), weight[0].numel(), [weight, *([] if bias is None else [bias])],
        lambda: (weight.permute(0, 2, 3, 1).flatten(1), bias), relu,
    )  # fmt: skip


def is_square(conv: nn.Conv2d) -> bool:
    """Whether it reads squares of pixels, and its weights lie as kernels read them."""
    kernel, stride, padding = conv.kernel_size, conv.stride, conv.padding
    return (
        kernel[0] == kernel[1]
        and stride[0] == stride[1]
        and isinstance(padding, tuple)
        and padding[0] == padding[1] < kernel[0]
        and conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and dense(conv.weight)
        and serves(*([] if conv.bias is None else [conv.bias]))
    )


def ready_down(x: Float[Tensor, "B H W C"], layer: ConvDown) -> ReadyConvolution | None:
    """The call for a convolution with a norm; None where modules must be called."""
    conv, norm = layer.conv, layer.norm
    if type(conv) is not nn.Conv2d or not untouched(x, conv) or not is_square(conv):
        return None
    outputs = x.new_empty(0, 0, 0, len(conv.weight))
    if not of_channels(norm, outputs) or not serves(norm.weight, norm.bias):
        return None
    numbers = Norm(norm.weight, norm.bias, norm.eps)
    return ReadyConvolution(
        product_of(conv), conv.kernel_size[0], conv.stride[0], int(conv.padding[0]), numbers
    )


def ready_patches(x: Float[Tensor, "B H W C"], conv: Patches) -> ReadyConvolution | None:
    """The call for patches that fill the map; None where PyTorch's is to be called."""
    if type(conv) is not Patches or not untouched(x, conv) or not is_square(conv):
        return None
    return ReadyConvolution(product_of(conv), conv.kernel_size[0], conv.stride[0])
