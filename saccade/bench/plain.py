"""What every cheap attention is compared with: convolutions, and attention to the whole map."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def depthwise(dim: int, window: int, stride: int = 1) -> nn.Conv2d:
    """One k x k filter a channel."""
    return nn.Conv2d(dim, dim, window, stride, window // 2, groups=dim, bias=False)


def separable(dim: int, window: int, stride: int = 1) -> nn.Sequential:
    """The same between two pointwise products: a layer."""
    return nn.Sequential(
        nn.Conv2d(dim, dim, 1), depthwise(dim, window, stride), nn.Conv2d(dim, dim, 1)
    )


def everywhere(
    q: Float[Tensor, "B C H W"],
    k: Float[Tensor, "B C H W"],
    v: Float[Tensor, "B C H W"],
    heads: int,
) -> Float[Tensor, "B C H W"]:
    """Every pixel attends to all others; copied token by token, which the fused kernel asks for."""
    by_head = (x.unflatten(1, (heads, -1)).flatten(3).mT.contiguous() for x in (q, k, v))
    return F.scaled_dot_product_attention(*by_head).mT.reshape(q.shape)


def random_tensor(*shape: int, train: bool, dtype: torch.dtype, device: str) -> Tensor:
    """Random numbers, with `requires_grad` in training."""
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=train)
