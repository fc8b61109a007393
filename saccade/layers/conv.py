"""A 3 x 3 convolution that learns faster on a CPU; to everyone else it is an nn.Conv2d."""

from jaxtyping import Float
from torch import Tensor, fx, nn

from saccade.ops.conv import conv3x3

fx.wrap("conv3x3")  # it branches on sizes: one node to torch.fx


class Conv3x3(nn.Conv2d):
    """nn.Conv2d(dim, out, 3, stride, padding=1); at stride 1 its weights' gradient is products."""

    def __init__(self, dim: int, out: int, stride: int = 1, bias: bool = True):
        super().__init__(dim, out, 3, stride, padding=1, bias=bias)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        if self.stride != (1, 1):
            return super().forward(input)
        return conv3x3(input, self.weight, self.bias)
