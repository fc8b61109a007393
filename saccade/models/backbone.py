"""The contract of every backbone: an image in, a list of feature maps out, finest first.

    maps = backbone(image)          image B 3 H W, any H and W from 32 pixels up
    maps[i].shape == (B, backbone.widths[i], ceil(H / strides[i]), ceil(W / strides[i]))

A backbone is a stem and stages, each NCHW to NCHW, so that code that wraps one (`zoo`, a detector)
needs to know nothing about the family. Memory is channels_last throughout.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from saccade.layers.ready import normed
from saccade.layers.walk import walkable, walked
from saccade.ops.modes import transformed

LEAST = 32  # pixels on a side


@walkable
class Stage(nn.Module):
    """Change the resolution, refine by blocks, and norm: one level of the pyramid."""

    def __init__(self, down: nn.Module, blocks: Iterable[nn.Module], norm: nn.Module | None = None):
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm if norm is not None else nn.Identity()
        self.checkpointing = False  # recompute each block in backward instead of keeping it

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        x = self.down(x)
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = _recomputed(block, x)
            else:
                x = block(x)
        return normed(x, self.norm)


def _recomputed(block: nn.Module, x: Tensor) -> Tensor:
    """The block's output; its intermediate results are computed again in backward.

    It runs twice, but BatchNorm must count the batch once. (A compiled graph does so by itself.)
    """
    if torch.compiler.is_compiling():
        return checkpoint(block, x, use_reentrant=False)

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), _statistics_kept(block)

    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


@contextmanager
def _statistics_kept(block: nn.Module) -> Generator[None]:
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked


@walkable
class Door(nn.Module):
    """Check images before a backbone, and bring them into channels_last memory."""

    def __init__(self, in_chans: int):
        super().__init__()
        self.in_chans = in_chans

    def forward(self, image: Float[Tensor, "..."]) -> Float[Tensor, "B C H W"]:
        return laid_out(image, self.in_chans)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for images of a shape that no backbone reads."""
        check_image(shape, self.in_chans)


def laid_out(image: Float[Tensor, "..."], in_chans: int) -> Float[Tensor, "B C H W"]:
    """The images with channels last in memory; impossible ones raise a ValueError."""
    if not torch.compiler.is_compiling():  # while exporting, sizes may be symbols
        check_image(tuple(image.shape), in_chans)
    if transformed():  # torch.vmap knows no layout
        return image
    return image.contiguous(memory_format=torch.channels_last)


fx.wrap("laid_out")  # one node to torch.fx


def check_image(shape: tuple[int, ...], in_chans: int) -> None:
    """Raise a ValueError for an image batch of an impossible shape."""
    if len(shape) != 4:
        raise ValueError(
            f"Backbone: an image batch has 4 axes (batch, channel, height, width), "
            f"got {shape=}; try image[None] for a single image"
        )
    _, C, H, W = shape
    if C != in_chans:
        raise ValueError(
            f"Backbone: this model reads {in_chans} channels, got {C}; "
            f"convert the image or build the model with in_chans={C}"
        )
    if min(H, W) < LEAST:
        raise ValueError(
            f"Backbone: an image needs at least {LEAST}x{LEAST} pixels, got {H}x{W}; resize it"
        )


class Backbone(nn.Module):
    """Image to maps. A family fills in `stem`, `stages` and `norm` and declares the rest.

    `norm` is what a classifier applies to the last map; the maps of `forward` come without it.
    """

    def __init__(
        self,
        stem: nn.Module,
        stages: Sequence[nn.Module],
        norm: nn.Module,
        *,
        in_chans: int,
        widths: Sequence[int],
        strides: Sequence[int],
    ):
        super().__init__()
        self.door = Door(in_chans)
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.norm = norm
        self.in_chans = in_chans
        self.widths = tuple(widths)
        self.strides = tuple(strides)

    def forward(self, image: Float[Tensor, "B C H W"]) -> list[Tensor]:
        maps = walked(image, self, Backbone.steps)
        return self.steps(self.door(image)) if maps is None else maps

    def last(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """The input of a classifier: norm(last map)."""
        maps = walked(image, self, Backbone._last, "last")
        return normed(self(image)[-1], self.norm) if maps is None else maps[0]

    def last_steps(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """The same of an image that `door` has prepared, module by module."""
        return normed(self.steps(x)[-1], self.norm)

    def _last(self, x: Float[Tensor, "B C H W"]) -> list[Tensor]:
        return [self.last_steps(x)]

    def steps(self, x: Float[Tensor, "B C H W"]) -> list[Tensor]:
        """The maps of an image that `door` has prepared, computed module by module."""
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


def drop_rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Stochastic depth growing linearly from 0 to `last` over all blocks, stage by stage."""
    total = sum(depths)
    rates = [last * i / max(total - 1, 1) for i in range(total)]
    ends = [sum(depths[: i + 1]) for i in range(len(depths))]
    return [rates[end - depth : end] for end, depth in zip(ends, depths, strict=True)]
