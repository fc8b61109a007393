"""A 3 x 3 convolution that learns faster on a CPU; to everyone else it is an nn.Conv2d."""

from jaxtyping import Float
from torch import Tensor, fx, nn

from saccade.ops.conv import conv3x3

fx.wrap("conv3x3")  # it branches on sizes: one node to torch.fx


class Conv3x3(nn.Conv2d):
    """nn.Conv2d(dim, out, 3, padding=1), with the gradient of its weights as matrix products."""

    def __init__(self, dim: int, out: int, bias: bool = True):
        super().__init__(dim, out, 3, padding=1, bias=bias)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        return conv3x3(input, self.weight, self.bias)
