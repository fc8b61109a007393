"""Put RP-CPE into the feed-forwards of vision transformers, after the first linear layer.

ViT, DeiT, Swin, ConvNeXt (timm, torchvision) and PVTv2 (timm; before its depth-wise convolution).
`keep` lets it begin as the identity: the norms of its branches begin at 0.
"""

from collections.abc import Iterator
from typing import Any, cast

import timm.layers.mlp
import timm.models.pvt_v2
import torch
from timm.models.convnext import ConvNeXtBlock
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn
from torchvision.models.convnext import CNBlock
from torchvision.models.swin_transformer import SwinTransformerBlock as TorchvisionSwinBlock
from torchvision.ops.misc import MLP

from saccade.layers.position import RPCPE
from saccade.models.graft.site import (
    Options,
    Site,
    alike,
    foreign_modules,
    parent,
    prefix_and_grid,
    set_module,
)


class PositionThenActivation(nn.Module):
    """RP-CPE before the activation that stood here."""

    def __init__(self, position: nn.Module, act: nn.Module):
        super().__init__()
        self.position, self.act = position, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.position(x))


class MapSwinBlock(SwinTransformerBlock):
    """timm's block whose feed-forward sees the map, not a row of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self._attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


def sites(model: nn.Module) -> Iterator[Site]:
    """The activations of feed-forwards, before which RP-CPE may stand."""
    prefix, grid = prefix_and_grid(model)
    for path, module in foreign_modules(model):
        above = _above(model, path)
        how: dict[str, Any] = {}
        if isinstance(module, timm.models.pvt_v2.MlpWithDepthwiseConv):
            how = {"dim": module.fc1.out_features, "layout": "NCHW"}
            yield _site(model, f"{path}.relu", how, None, module)
        elif isinstance(module, timm.layers.mlp.Mlp):
            wide = module.fc1
            dim = wide.out_channels if isinstance(wide, nn.Conv2d) else wide.out_features
            how = {"dim": dim, "layout": "tokens", "prefix": prefix, "size": grid}
            swin = isinstance(above, SwinTransformerBlock)
            if swin or isinstance(above, ConvNeXtBlock):
                layout = "NCHW" if isinstance(wide, nn.Conv2d) else "NHWC"
                how = {"dim": dim, "layout": layout}
            elif grid is None:
                yield Site(f"{path}.act", "Mlp", why="the grid of its tokens is not known")
                continue
            yield _site(model, f"{path}.act", how, above if swin else None, module)
        elif isinstance(module, MLP) and len(module) > 1 and isinstance(module[0], nn.Linear):
            how = {"dim": module[0].out_features, "layout": "tokens", "prefix": prefix}
            how["size"] = grid
            if isinstance(above, TorchvisionSwinBlock):
                how = {"dim": module[0].out_features, "layout": "NHWC"}
            elif grid is None:
                continue
            yield _site(model, f"{path}.1", how, None, module)
        elif isinstance(module, CNBlock):
            how = {"dim": cast(Any, module.block[3]).out_features, "layout": "NHWC"}
            yield _site(model, f"{path}.block.4", how, None, module)


def _above(model: nn.Module, path: str) -> nn.Module | None:
    return parent(model, path)[0] if path else None


def _site(
    model: nn.Module, path: str, how: dict[str, Any], swin: nn.Module | None, old: nn.Module
) -> Site:
    act = model.get_submodule(path)

    def make(options: Options) -> nn.Module:
        own = {k: v for k, v in options.items() if k != "keep"}
        with torch.device(next(old.parameters()).device):
            position = alike(RPCPE(**how, **own), old)
        return PositionThenActivation(position, act).train(old.training)

    def place(new: nn.Module) -> None:
        set_module(model, path, new)
        if swin is not None and type(swin) is SwinTransformerBlock:
            swin.__class__ = MapSwinBlock

    def begin(new: nn.Module, _: nn.Module) -> None:
        begin_identity(cast(Any, new).position)

    def unless_there() -> str:
        return "has RP-CPE already" if isinstance(act, PositionThenActivation) else ""

    dim, why = how["dim"], unless_there()
    shape = {"NCHW": (dim, 6, 7), "NHWC": (6, 7, dim)}.get(how["layout"])
    if shape is None:
        (H, W), prefix = how["size"], how["prefix"]
        shape = (H * W + prefix, dim)
    return Site(
        path, type(act).__name__, make=None if why else make, why=why, put=place, begin=begin,
        reads=shape,
    )  # fmt: skip


@torch.no_grad()
def begin_identity(position: RPCPE) -> None:
    """Let all branches begin at 0, by their norms; the skip hands the map on."""
    if not position.skip:
        raise ValueError("graft: keep=True needs the skip of RP-CPE; leave skip or keep out")
    for branch in cast(Any, position.branches):
        if branch.norm is None:
            raise ValueError(
                "graft: branches without norm that begin at 0 stay alike; leave norm or keep out"
            )
        branch.norm.weight.zero_()
