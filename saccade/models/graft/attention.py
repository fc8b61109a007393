"""Replace the attention of vision transformers by key-only attention or learned queries.

ViT and DeiT (timm, torchvision), PVTv2 (timm) and Swin (timm, torchvision). Swin's blocks lose
their windows and shifts: the new layer sees the whole map.
"""

from collections.abc import Iterator
from typing import Any

import timm.layers.attention
import timm.models.pvt_v2
import timm.models.swin_transformer
import torch
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn
from torchvision.models import swin_transformer as torchvision_swin

from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.qna import LearnedQueryAttention
from saccade.models.graft.site import (
    Options,
    Site,
    alike,
    describe,
    foreign_modules,
    heads_of,
    prefix_and_grid,
    set_module,
)

WINDOWED = (torchvision_swin.ShiftedWindowAttention,)  # V2's inherits from it


class WholeMapSwinBlock(SwinTransformerBlock):
    """timm's block with attention over the whole map: no windows, no shifts."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))

    def set_input_size(self, feat_size: Any, window_size: Any, always_partition: Any = None):
        """There is no window to set."""
        self.input_resolution = feat_size


def sites(model: nn.Module, kind: str) -> Iterator[Site]:
    """The attention layers of a network, for "key-only" or "qna"."""
    prefix, grid = prefix_and_grid(model)
    for path, module in foreign_modules(model):
        how: dict[str, Any] | None = None
        if isinstance(module, SwinTransformerBlock):
            attn = module.attn
            if isinstance(attn, timm.models.swin_transformer.WindowAttention):
                at = f"{path}.attn" if path else "attn"
                how = {"dim": module.dim, "heads": attn.num_heads, "layout": "NHWC"}
                yield _site(
                    model, kind, at, attn, how, lambda new, block=module: _whole(block, new)
                )
            continue
        if isinstance(module, timm.layers.attention.Attention):
            how = {"dim": module.qkv.in_features, "heads": module.num_heads, "layout": "tokens"}
            how |= {"prefix": prefix, "size": grid}
            if module.proj.out_features != module.qkv.in_features:
                yield Site(path, describe(module), why="changes the width")
                continue
        elif isinstance(module, timm.models.pvt_v2.Attention):
            how = {"dim": module.dim, "heads": module.num_heads, "layout": "tokens"}
        elif isinstance(module, WINDOWED):
            dim = module.qkv.in_features
            how = {"dim": dim, "heads": module.num_heads, "layout": "NHWC"}
        elif isinstance(module, nn.MultiheadAttention) and module.batch_first:
            how = {"dim": module.embed_dim, "heads": module.num_heads, "layout": "tokens"}
            how |= {"prefix": prefix, "size": grid}
        if how is not None:
            yield _site(
                model, kind, path, module, how, lambda new, path=path: set_module(model, path, new)
            )


def _site(
    model: nn.Module, kind: str, path: str, old: nn.Module, how: dict[str, Any], place: Any
) -> Site:
    return Site(
        path,
        describe(old),
        make=lambda options: alike(_layer(kind, how, options, old), old),
        put=place,
    )


def _layer(kind: str, how: dict[str, Any], options: Options, old: nn.Module) -> nn.Module:
    dim, heads = how["dim"], how["heads"]
    where = {k: how[k] for k in ("layout", "prefix", "size") if how.get(k) is not None}
    own = {k: v for k, v in options.items() if k != "keep"}
    device = next(old.parameters()).device
    with torch.device(device):
        if kind == "key-only":
            return KeyOnlyAttention(dim, own.pop("heads", heads), **own, **where)
        own.setdefault("heads", heads_of(own.get("width", dim), most=heads))
        return LearnedQueryAttention(dim, **own, **where)


def _whole(block: Any, new: nn.Module) -> None:
    block.attn = new
    block.register_buffer("attn_mask", None, persistent=False)
    block.__class__ = WholeMapSwinBlock
