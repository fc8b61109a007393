"""Subclasses of nn.Conv2d that are faster on a CPU."""

from jaxtyping import Float
from torch import Tensor, fx, nn

from saccade.layers.untouched import readable
from saccade.ops.conv import conv1x1, conv3x3

fx.wrap("conv1x1")  # both branch on sizes: one node to torch.fx
fx.wrap("conv3x3")


@readable
class ProductConv2d(nn.Conv2d):
    """nn.Conv2d, computed by matrix products: 1 x 1 fully, 3 x 3 in the gradient of its weights.

    Its constructor is that of nn.Conv2d, because adapters build a second layer of the same type.
    """

    def forward(self, input: Float[Tensor, "*B C H W"]) -> Float[Tensor, "*B D h w"]:
        if self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros":
            down, along = self.stride
            if self.kernel_size == (1, 1) and self.padding == (0, 0) and down == along:
                return conv1x1(input, self.weight, self.bias, down)
            if self.kernel_size == (3, 3) and self.padding == (1, 1) and down == along == 1:
                return conv3x3(input, self.weight, self.bias)
        return super().forward(input)


def Conv1x1(dim: int, out: int, stride: int = 1, bias: bool = True) -> ProductConv2d:  # noqa: N802
    """A linear map of every pixel."""
    return ProductConv2d(dim, out, 1, stride, bias=bias)


def Conv3x3(dim: int, out: int, stride: int = 1, bias: bool = True) -> ProductConv2d:  # noqa: N802
    """A 3 x 3 convolution with zero padding."""
    return ProductConv2d(dim, out, 3, stride, padding=1, bias=bias)
