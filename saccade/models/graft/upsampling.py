"""Replace transposed convolutions and interpolation of decoders by QnA's up-sampler.

`nn.ConvTranspose2d` and `nn.Upsample` wherever they stand, and the blocks of
segmentation_models_pytorch's U-Net, which interpolate inside. `keep` begins as the interpolation
(bilinear, nearest), or near a transposed convolution: its mean matrix, spread bilinearly.
"""

import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from saccade.layers.qna import LearnedQueryUpsampling
from saccade.models.graft.site import (
    Options,
    Site,
    alike,
    describe,
    foreign_modules,
    heads_of,
    read,
    set_module,
)

LEAST = 1e-5  # the share of a place that counts for nothing
MODES = ("nearest", "bilinear", "bicubic")
UNET = "segmentation_models_pytorch.decoders.unet.decoder"


def sites(model: nn.Module, image: tuple[int, int, int]) -> Iterator[Site]:
    """Whatever raises the resolution by a whole factor."""
    unet: Any = getattr(sys.modules.get(UNET), "UnetDecoderBlock", None)
    without_channels = []
    for path, module in foreign_modules(model):
        if isinstance(module, nn.Upsample) or (unet is not None and type(module) is unet):
            without_channels.append(path)
    shapes = read(model, without_channels, image) if without_channels else {}
    for path, module in foreign_modules(model):
        if isinstance(module, nn.ConvTranspose2d):
            yield _transposed(model, path, module)
        elif path in shapes and isinstance(module, nn.Upsample):
            factor, mode = module.scale_factor, module.mode
            both = factor if isinstance(factor, tuple) else (factor, factor)
            if both[0] != both[1] or both[0] is None or both[0] % 1 or mode not in MODES:
                yield Site(path, describe(module), why=f"factor {factor}, mode {mode!r}")
                continue
            dim, aligned = shapes[path][1], bool(module.align_corners)
            start = "nearest" if mode == "nearest" else "bilinear"
            yield _interpolation(
                model, path, module, dim, int(both[0]), start,
                lambda new, path=path: set_module(model, path, new),
                compared=mode in ("nearest", "bilinear") and not aligned,
            )  # fmt: skip
        elif path in shapes:
            block: Any = module
            mode = "nearest" if block.interpolation_mode == "nearest" else "bilinear"
            yield _interpolation(
                model, path, module, shapes[path][1], 2, mode,
                lambda new, block=block: _into_unet(block, new), compared=False,
            )  # fmt: skip


def _transposed(model: nn.Module, path: str, conv: nn.ConvTranspose2d) -> Site:
    (k, s, p), more = _sides(conv), conv.output_padding
    if k is None or s < 2 or k - 2 * p + more[0] - s or more[0] != more[1] or conv.groups > 1:
        why = "does not enlarge both sides by a whole factor, or is not dense"
        return Site(path, describe(conv), why=why)

    def make(options: Options) -> nn.Module:
        own = {k: v for k, v in options.items() if k != "keep"}
        width = own.pop("width", conv.out_channels)
        own.setdefault("heads", heads_of(width, side=8))
        with torch.device(conv.weight.device):
            layer = LearnedQueryUpsampling(
                conv.in_channels, factor=s, width=width, out_dim=conv.out_channels,
                bias=conv.bias is not None, layout="NCHW", **own,
            )  # fmt: skip
        return alike(layer, conv)

    return Site(
        path, describe(conv), make=make, put=lambda new: set_module(model, path, new),
        begin=begin_transposed, reads=(conv.in_channels, 8, 8),
    )  # fmt: skip


def _sides(conv: nn.ConvTranspose2d) -> tuple[Any, int, int]:
    square = all(a == b for a, b in (conv.kernel_size, conv.stride, conv.dilation))
    padding = cast(Any, conv.padding)
    known = square and conv.dilation[0] == 1 and padding[0] == padding[1]
    return (conv.kernel_size[0] if known else None), conv.stride[0], padding[0]


def _interpolation(
    model: nn.Module, path: str, old: nn.Module, dim: int, factor: int, start: str, place: Any,
    compared: bool,
) -> Site:  # fmt: skip
    def make(options: Options) -> nn.Module:
        own = {k: v for k, v in options.items() if k != "keep"}
        own.setdefault("heads", heads_of(own.get("width", dim), side=8))
        like = next(model.parameters())
        with torch.device(like.device):
            layer = LearnedQueryUpsampling(dim, factor=factor, layout="NCHW", **own)
        return layer.to(like.dtype).train(old.training)

    def begin(new: nn.Module, _: nn.Module) -> None:
        begin_interpolation(cast(Any, new), start)

    return Site(
        path,
        describe(old),
        make=make,
        put=place,
        begin=begin,
        reads=(dim, 8, 8) if compared else (),
    )


class _GraftedUnetBlock:
    """What a block of smp's U-Net does once it has an up-sampler of its own."""

    def forward(
        self: Any,
        feature_map: Tensor,
        target_height: int,
        target_width: int,
        skip_connection: Tensor | None = None,
    ) -> Tensor:
        x = self.up(feature_map)[:, :, :target_height, :target_width]
        if x.shape[2] < target_height or x.shape[3] < target_width:
            more = (0, target_width - x.shape[3], 0, target_height - x.shape[2])
            x = nn.functional.pad(x, more, mode="replicate")
        if skip_connection is not None:
            x = self.attention1(torch.cat([x, skip_connection], 1))
        return self.attention2(self.conv2(self.conv1(x)))


def _into_unet(block: Any, new: nn.Module) -> None:
    block.up = new
    block.__class__ = type("GraftedUnetBlock", (_GraftedUnetBlock, type(block)), {})


# -- where it begins ------------------------------------------------------------------------------


@torch.no_grad()
def _place(mix: LearnedQueryUpsampling, mode: str) -> None:
    """Keys at 0 and the table at the logarithm of an interpolation's weights."""
    mix.key.weight.zero_()
    at = (torch.arange(mix.factor, device=mix.rpe.device) + 0.5) / mix.factor - 0.5
    if mode == "nearest":
        at = torch.zeros_like(at)
    places = torch.arange(mix.window, device=at.device) - mix.window // 2
    side = (1 - (at[:, None] - places).abs()).clamp(min=0)  # new pixel, place
    near = torch.einsum("iy,jx->yxij", side, side).flatten(2)
    mix.rpe.copy_(near.clamp(min=LEAST).log()[..., None].expand_as(mix.rpe))
    for part in (mix.key, mix.value, mix.mix):
        if part.bias is not None:
            part.bias.zero_()


@torch.no_grad()
def begin_interpolation(mix: LearnedQueryUpsampling, mode: str) -> None:
    """Values and mix at the identity."""
    width, dim = mix.value.weight.shape
    if width < dim:
        raise ValueError(f"graft: keep=True needs all {dim} channels, got width={width}")
    _place(mix, mode)
    nn.init.eye_(mix.value.weight)
    nn.init.eye_(mix.mix.weight)


@torch.no_grad()
def begin_transposed(new: Any, conv: Any) -> None:
    """The mean of the transposed convolution's matrices, each new pixel interpolated."""
    _place(new, "bilinear" if conv.kernel_size[0] > conv.stride[0] else "nearest")
    matrix = conv.weight.detach().double().cpu().sum((2, 3)).mT / conv.stride[0] ** 2  # out in
    left, size, right = torch.linalg.svd(matrix, full_matrices=False)
    n = min(len(size), new.value.weight.shape[0])
    new.value.weight.zero_(), new.mix.weight.zero_()
    root = size[:n].sqrt()
    new.value.weight[:n].copy_(root[:, None] * right[:n])
    new.mix.weight[:, :n].copy_(left[:, :n] * root)
    if conv.bias is not None:
        new.mix.bias.copy_(conv.bias)
