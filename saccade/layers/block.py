"""The residual block that every transformer-like stage repeats, and its feed-forward half."""

from collections.abc import Callable
from typing import cast

from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn

from saccade.layers.conv import Conv3x3
from saccade.layers.position import RPCPE
from saccade.layers.untouched import applied, untouched
from saccade.ops import feed as ops


class FeedForward(nn.Module):
    """Two linear layers per pixel; `position` (NCHW to NCHW) acts between them, on the wide map.

    One operator where its parts are as they were built; any of them that somebody hooked, wrapped
    or replaced is called.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        position: nn.Module | None = None,
        act: Callable[[], nn.Module] = nn.GELU,
    ):
        super().__init__()
        self.widen = nn.Linear(dim, hidden)
        self.position = position
        self.act = act()
        self.narrow = nn.Linear(hidden, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.widen, self.narrow):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def letters(self, x: Float[Tensor, "B H W C"]) -> ops.FeedForwardWeights | None:
        """The parameters as `saccade.ops.feed` calls them; None where modules must be called."""
        widen, narrow = self.widen, self.narrow
        if not self._known(x) or not untouched(x, widen) or widen.bias is None:
            return None
        taps = shift = None
        if self.position is not None:
            one = cast(RPCPE, self.position).one(x)
            if one is None:
                return None
            taps, shift = one
        return ops.FeedForwardWeights(
            widen.weight, widen.bias, taps, shift, narrow.weight, narrow.bias
        )  # fmt: skip

    def letters_of_batch(self, h: Float[Tensor, "B H W J"]) -> ops.FeedForwardWeights | None:
        """The same from the wide map on, whose statistics `position` wants to see."""
        if self.position is None or not self._known(h):
            return None
        one = cast(RPCPE, self.position).of_batch(h)
        if one is None:
            return None
        return ops.FeedForwardWeights(None, None, *one, self.narrow.weight, self.narrow.bias)

    def _known(self, x: Float[Tensor, "B H W C"]) -> bool:
        """Whether all that comes after `widen` is what the operator computes."""
        known = type(self.act) is nn.GELU and type(self.position) in (RPCPE, type(None))
        known = known and x.ndim == 4 and self.narrow.bias is not None
        return known and untouched(x, self.act, self.narrow)

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        letters = self.letters(x)
        if letters is None:
            x = applied(self.widen, x)
            letters = self.letters_of_batch(x)
        if letters is not None:
            return ops.feed_forward(x, letters, self.act.approximate == "tanh")
        if self.position is not None:
            x = self.position(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.narrow(self.act(x))


class Block(nn.Module):
    """x + mix(norm x), then x + ffn(norm x).

    Maps go in and out as NCHW; `mix` and `ffn` see B H W C. Kept in channels_last memory, both
    are the same bytes, so the permutes cost nothing.
    """

    def __init__(self, dim: int, mix: nn.Module, ffn: nn.Module, drop_path: float = 0.0):
        super().__init__()
        self.mix_norm = nn.LayerNorm(dim, eps=1e-6)
        self.mix = mix
        self.ffn_norm = nn.LayerNorm(dim, eps=1e-6)
        self.ffn = ffn
        self.drop = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        x = x.permute(0, 2, 3, 1)
        x = x + self.drop(self.mix(self.mix_norm(x)))
        x = x + self.drop(self.ffn(self.ffn_norm(x)))
        return x.permute(0, 3, 1, 2)


class SEBasicBlock(nn.Module):
    """Two 3x3 convolutions, squeeze-and-excitation, and a skip: LinGlo's "C" (Table 5)."""

    def __init__(self, dim: int, squeeze: int = 16, drop_path: float = 0.0):
        super().__init__()
        self.conv1 = Conv3x3(dim, dim, bias=False)
        self.norm1 = nn.BatchNorm2d(dim)
        self.conv2 = Conv3x3(dim, dim, bias=False)
        self.norm2 = nn.BatchNorm2d(dim)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(dim, dim // squeeze, 1),
            nn.ReLU(),
            nn.Conv2d(dim // squeeze, dim, 1),
            nn.Sigmoid(),
        )
        self.act = nn.ReLU()
        self.drop = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        y = self.act(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.act(x + self.drop(y * self.excite(y)))
