"""Convolutions that are faster on a CPU; to everyone else they are nn.Conv2d."""

from jaxtyping import Float
from torch import Tensor, fx, nn

from saccade.ops.conv import conv1x1, conv3x3

fx.wrap("conv1x1")  # both branch on sizes: one node to torch.fx
fx.wrap("conv3x3")


class Conv1x1(nn.Conv2d):
    """nn.Conv2d(dim, out, 1, stride): of channels_last maps one product."""

    def __init__(self, dim: int, out: int, stride: int = 1, bias: bool = True):
        super().__init__(dim, out, 1, stride, bias=bias)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        down, along = self.stride
        if down != along or self.padding != (0, 0) or self.groups != 1:
            return super().forward(input)
        return conv1x1(input, self.weight, self.bias, down)


class Conv3x3(nn.Conv2d):
    """nn.Conv2d(dim, out, 3, stride, padding=1); at stride 1 its weights' gradient is products."""

    def __init__(self, dim: int, out: int, stride: int = 1, bias: bool = True):
        super().__init__(dim, out, 3, stride, padding=1, bias=bias)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        if self.stride != (1, 1):
            return super().forward(input)
        return conv3x3(input, self.weight, self.bias)
