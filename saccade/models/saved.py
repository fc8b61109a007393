"""Models on disk: one safetensors file that holds the weights and how to build their model.

The header's `saccade` entry is JSON: variant, timm's arguments, the backbone's own, fused or not.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from saccade.models.zoo import Classifier, build


def save(model: Classifier, path: str | Path, **notes: object) -> Path:
    """Write a model so that `load` alone brings it back; `notes` (JSON) travel with it."""
    path = Path(path)
    about = {"model": describe(model), "notes": notes}
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    partial = path.with_name(path.name + ".part")
    save_file(tensors, partial, metadata={"saccade": json.dumps(about)})
    partial.replace(path)  # a crash midway leaves an older file whole
    return path


def load(path: str | Path, **overrides: Any) -> Classifier:
    """The model that `save` wrote, weights and all, in eval mode."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load: no file {str(path)!r}; give the path that save() returned")
    try:
        with safe_open(path, "pt") as file:
            about = (file.metadata() or {}).get("saccade")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"load: {str(path)!r} is truncated or no safetensors file ({error}); "
            f"copy it again from where it was saved"
        ) from error
    if about is None:
        raise ValueError(
            f"load: {str(path)!r} holds weights but not their model; "
            f"build the model by name and use its load_state_dict"
        )
    arguments = json.loads(about)["model"]
    fused = arguments.pop("fused")
    model = build(**{**arguments, **overrides}).eval()
    if not isinstance(model, Classifier):
        raise ValueError("load: gives whole models; for features, load and take model.backbone")
    if fused:
        model.fuse()
    fill(model, tensors, str(path))
    return model


def fill(model: nn.Module, tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load a state dict, or say in one sentence why it belongs to another model."""
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in tensors:
            raise ValueError(f"load: {source!r} is of another model: it has no {name!r}")
        if tensors[name].shape != tensor.shape:
            raise ValueError(
                f"load: {source!r} is of another model: {name!r} is "
                f"{tuple(tensors[name].shape)} there and {tuple(tensor.shape)} here"
            )
    for name in tensors:
        if name not in own:
            raise ValueError(f"load: {source!r} is of another model: {name!r} has no place here")
    model.load_state_dict(tensors)


def describe(model: Classifier) -> dict:
    """The arguments of `build` that make this model again."""
    return {
        "name": model.default_cfg["architecture"],
        "num_classes": model.num_classes,
        "in_chans": model.backbone.in_chans,
        "global_pool": model.head.global_pool.pool_type,
        **model.overrides,
        "fused": model.fused,
    }
