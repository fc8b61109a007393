"""The residual block that every transformer-like stage repeats, and its feed-forward half."""

from collections.abc import Callable
from typing import Any, cast

from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn

from saccade.layers.branches import letters_of_batch, remember
from saccade.layers.conv import Conv3x3
from saccade.layers.norm import of_channels
from saccade.layers.position import RPCPE
from saccade.layers.ready import residual
from saccade.layers.untouched import readable, untouched
from saccade.layers.walk import walkable
from saccade.ops import feed as ops
from saccade.ops.branches import BranchWeights, feed_branches
from saccade.ops.native.residual import LANES, FeedResidual, Norm, serves
from saccade.ops.residual import FEED_RESIDUAL


@readable
class FeedForward(nn.Module):
    """Two linear layers per pixel; `position` (NCHW to NCHW) acts between them, on the wide map.

    It runs as one operator as long as its parts are as they were built; parts that were hooked,
    wrapped or replaced are called as modules.
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
        return self._letters() if self._plain(x) else None

    def _letters(self) -> ops.FeedForwardWeights | None:
        widen, narrow = self.widen, self.narrow
        taps = shift = None
        if self.position is not None:
            one = cast(RPCPE, self.position).merged_kernel()
            if one is None:
                return None
            taps, shift = one
        return ops.FeedForwardWeights(
            widen.weight, widen.bias, taps, shift, narrow.weight, narrow.bias
        )  # fmt: skip

    def ready_after(self, x: Float[Tensor, "B H W C"], norm: Any) -> FeedResidual | None:
        """x + self(norm(x)) as one call, for inference; None where modules must be called."""
        letters = self._letters_after(x, norm)
        if letters is None or len(letters.w1) % LANES:
            return None
        w1, b1, _, _, w2, b2 = letters
        FEED_RESIDUAL.check(x, norm.weight, norm.bias, *letters, self._tanh, norm.eps)
        own = w1, b1, w2, b2, norm.weight, norm.bias
        if self.position is None:
            parts, position = (), None
        else:
            state = [*self.position.parameters(), *self.position.buffers()]
            parts = [t for t in state if t.is_floating_point()]
            position = cast(RPCPE, self.position).kernel
        if not serves(*own, *parts):
            return None
        numbers = Norm(norm.weight, norm.bias, norm.eps)
        return FeedResidual(numbers, w1, b1, w2, b2, self._tanh, parts, position)

    def after(self, x: Float[Tensor, "B H W C"], norm: Any) -> Float[Tensor, "B H W C"] | None:
        """x + self(norm(x)) as one operator, for graphs; None where modules must be called."""
        letters = self._letters_after(x, norm)
        if letters is None:
            return None
        return FEED_RESIDUAL(x, norm.weight, norm.bias, *letters, self._tanh, norm.eps)

    def _letters_after(self, x: Tensor, norm: nn.Module) -> ops.FeedForwardWeights | None:
        letters = self.letters(x) if of_channels(norm, x) else None
        return letters if letters is not None and len(letters.w2) == x.shape[3] else None

    @property
    def _tanh(self) -> bool:
        return self.act.approximate == "tanh"

    def _plain(self, x: Float[Tensor, "B H W C"]) -> bool:
        """Whether all parts are plain modules, as the operators compute them."""
        widen, act, position, narrow = self.widen, self.act, self.position, self.narrow
        known = type(act) is nn.GELU and act.approximate in ("none", "tanh")
        known = known and type(position) in (RPCPE, type(None))
        if not known or not untouched(x, widen, act, position, narrow):
            return False
        return x.ndim == 4 and widen.bias is not None and narrow.bias is not None

    def _by_statistics(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"] | None:
        """The result in training, where branches of `position` gather the batch's statistics.

        None where modules must be called. For one that is `_plain`.
        """
        position, widen, narrow = cast(RPCPE, self.position), self.widen, self.narrow
        branches = list(position.branches)
        letters = letters_of_batch(branches) if branches else None
        if letters is None:
            return None
        k, gamma, beta, eps = letters
        weights = BranchWeights(
            widen.weight, widen.bias, k, gamma, beta, narrow.weight, narrow.bias
        )  # fmt: skip
        results = feed_branches(x, weights, eps, position.skip, self._tanh)
        if results is None:
            return None
        y, statistics = results
        remember(branches, statistics, x.shape[0] * x.shape[1] * x.shape[2])
        return y

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        if self._plain(x):
            letters = self._letters()
            if letters is not None:
                return ops.feed_forward(x, letters, self._tanh)
            y = self._by_statistics(x)
            if y is not None:
                return y
        x = self.widen(x)
        if self.position is not None:
            x = self.position(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.narrow(self.act(x))


@walkable
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
        x = residual(x, self.mix_norm, self.mix, self.drop)
        x = residual(x, self.ffn_norm, self.ffn, self.drop)
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
