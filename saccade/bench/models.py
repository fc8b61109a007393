"""Whole models, ours and timm's, and which of timm's stand beside which of ours."""

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import timm
import torch

from saccade.bench.peer import Peer, count
from saccade.models import zoo
from saccade.spelling import nearest

# Of about the same size and cost, or what the paper compares with; the first pattern that fits.
PEERS = {
    "linglo_b1*": ("pvt_v2_b1",),
    "linglo_b2*": ("pvt_v2_b2", "swin_tiny_patch4_window7_224", "convnext_tiny"),
    "linglo*": ("pvt_v2_b0",),
    "qna_t*": ("pvt_v2_b1", "swin_tiny_patch4_window7_224", "convnext_tiny"),
    "qna*": ("pvt_v2_b2", "swin_tiny_patch4_window7_224", "convnext_tiny"),
    "sasa_resnet50*": ("resnet50", "halonet50ts"),
    "sasa*": ("resnet26", "halonet26t"),
}


def with_peers(names: Sequence[str]) -> list[str]:
    """The names, and behind them timm's models to compare them with (where installed)."""
    all_names = list(names)
    for name in names:
        pattern = next((p for p in PEERS if fnmatch(name, p)), None)
        all_names += [peer for peer in PEERS.get(pattern or "", ()) if timm.is_model(peer)]
    return list(dict.fromkeys(all_names))


def peers(
    names: Sequence[str],
    size: int = 224,
    batch: int = 1,
    *,
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> dict[str, Peer]:
    """Each model with a batch of images; ours in eval mode are fused, as for deployment."""
    image = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
    by_name: dict[str, Peer] = {}
    for name in names:
        if not timm.is_model(name):
            all_names = [*zoo.VARIANTS, *timm.list_models()]
            raise ValueError(f"no model named {name!r}; did you mean {nearest(name, all_names)!r}?")
        model, own = build(name, size)
        model = model.train(train).to(device, dtype)
        if not train and isinstance(model, zoo.Classifier):
            model.fuse()
        try:
            by_name[name] = Peer(model, (image,), count(model, (image,), train))
        except (AssertionError, RuntimeError, ValueError) as error:
            why = str(error).strip().split("\n")[0] or f"its own size is {own} x {own}"
            by_name[name] = Peer(model, (image,), absent=f"takes no {size} x {size} pixels: {why}")
    return by_name


def build(name: str, size: int) -> tuple[torch.nn.Module, int]:
    """The model, made for images of `size` where that is fixed, and the size it is known by."""
    timm_config = timm.models.get_pretrained_cfg(name)
    fixed: dict[str, Any] = (
        {"img_size": size} if timm_config and timm_config.fixed_input_size else {}
    )
    return timm.create_model(name, **fixed), timm_config.input_size[1] if timm_config else size
