"""Describe a model: the arguments that build it again, and timm's config."""

from typing import Any

from torch import nn

from saccade.layers.branches import DepthwiseBranch
from saccade.models.zoo import Classifier, stated_arguments


def describe(model: nn.Module) -> dict[str, Any]:
    """The arguments that make this model again, one of saccade or of timm."""
    arguments = _arguments(model)
    grafts = getattr(model, "grafts", None)
    also = {"grafts": grafts} if grafts else {}
    return {**stated_arguments(arguments.get("name", "")), **arguments, **also}


def _arguments(model: nn.Module) -> dict[str, Any]:
    own = getattr(model, "describe", None)
    if callable(own):
        return own()
    if not isinstance(model, Classifier):
        about = timm_config(model)
        options = {
            "in_chans": about["input_size"][0], **_image_size(model, about),
            **getattr(model, "options", {}),
        }  # fmt: skip
        return {"name": about["architecture"], "num_classes": model.num_classes, **options}
    return {
        "name": model.default_cfg["architecture"],
        "num_classes": model.num_classes,
        "in_chans": model.backbone.in_chans,
        "global_pool": model.head.global_pool.pool_type,
        **model.overrides,
        **_without_norms(model),
        "fused": model.fused,
    }


def _image_size(model: nn.Module, about: dict[str, Any]) -> dict[str, Any]:
    """The image size of a vision transformer, where it differs from the one in timm's
    description."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    known = size is None or tuple(size) == tuple(about["input_size"][1:])
    return {} if known else {"img_size": list(size)}


def _without_norms(model: nn.Module) -> dict[str, Any]:
    """The argument that a model has after loading weights without branch norms, of old versions."""
    branches = [m for m in model.modules() if isinstance(m, DepthwiseBranch)]
    bare = bool(branches) and all(branch.norm is None for branch in branches)
    return {"branch_norm": False} if bare else {}


def known_config(model: nn.Module) -> dict[str, Any] | None:
    """timm's description of a model, or None."""
    about = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return dict(about) if about else None


def timm_config(model: nn.Module) -> dict[str, Any]:
    """timm's description of a model: architecture, input, normalisation, names of the ends."""
    about = known_config(model)
    if about is None:
        raise ValueError(f"{type(model).__name__} is no model of saccade or timm: it has no card")
    return dict(about)
