"""Models on disk: one safetensors file that holds the weights and how to build their model.

The header's `saccade` entry is JSON: variant, timm's arguments, the backbone's own, fused or not;
for a detector, its kind and the arguments of that kind's `build`.
"""

import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import nn

from saccade import weights
from saccade.models.describe import card, describe

# Nets that are no classifiers: their `describe` names one of these, whose `build` makes them again.
KINDS = {
    "retinanet": "saccade.models.retinanet",
    "detr": "saccade.models.detr",
    "semantic_fpn": "saccade.models.semantic_fpn",
    "autoencoder": "saccade.models.autoencoder",
}


def save(
    model: nn.Module,
    path: str | Path,
    tensors: dict[str, torch.Tensor] | None = None,
    **notes: object,
) -> Path:
    """Write a model so that `load` alone brings it back; `notes` (JSON) travel with it.

    `tensors` stand for the model's own where these are elsewhere, as on other processes.
    """
    path = Path(path)
    about = {"model": describe(model), "notes": notes}
    tensors = model.state_dict() if tensors is None else tensors
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = {"format": "pt", "saccade": json.dumps(about)}
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(_settled(serialised(tensors, metadata=about)))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)  # a crash midway leaves an older file whole
    return path


def _settled(content: bytes) -> bytes:
    """With the header's notes in order: safetensors writes them in any order, and equal models are
    to be equal files."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > length:
        raise RuntimeError("save: safetensors writes its header in a form not known here")
    return b"".join((content[:8], text.ljust(length), memoryview(content)[8 + length :]))


def located(model: str | Path) -> Path | None:
    """The file of a trained model: itself, a run's best, or one that comes with the package."""
    path = Path(model)
    if path.is_dir():
        if not (path / "model.safetensors").is_file():
            raise FileNotFoundError(
                f"{str(path)!r} holds no trained model yet; "
                f"one is written with the first evaluation"
            )
        return path / "model.safetensors"
    if path.is_file():
        return path
    name = weights.full(str(model))
    return weights.FILES[name] if name else None


def load(path: str | Path, **overrides: Any) -> nn.Module:
    """The model that `save` wrote, weights and all, in eval mode; its `notes` come along.

    A run's folder stands for its best model, a name for one that comes with the package; a folder
    that timm wrote for the hub is read too.
    """
    found = located(path)
    if found is None:
        raise FileNotFoundError(
            f"load: no file {str(path)!r}; give the path that save() returned, "
            f"or one of {', '.join(weights.NAMES)}"
        )
    path = found
    try:
        with safe_open(path, "pt") as file:
            about = (file.metadata() or {}).get("saccade")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"load: {str(path)!r} is truncated or no safetensors file ({error}); "
            f"copy it again from where it was saved"
        ) from error
    if about is None and (path.parent / "config.json").is_file():
        return read_timm(path.parent, **overrides)
    if about is None:
        raise ValueError(
            f"load: {str(path)!r} holds weights but not their model; "
            f"build the model by name and use its load_state_dict"
        )
    told = json.loads(about)
    model = _built(told["model"], overrides, str(path))
    fill(model, tensors, str(path))
    model.notes = told["notes"]
    return model


def _built(about: dict[str, Any], overrides: dict[str, Any], source: str) -> nn.Module:
    """A fresh model of the same make, in eval mode."""
    if overrides.get("features_only"):
        raise ValueError("load: gives whole models; for features, load and take model.backbone")
    about = {**about, **overrides}
    fused, kind = about.pop("fused", False), about.pop("kind", None)
    if kind is None:
        model: Any = timm.create_model(about.pop("name"), **about)
    elif kind in KINDS:
        model = import_module(KINDS[kind]).build(**about)
    else:
        raise ValueError(f"load: {source!r} is a {kind!r}, which this version does not know")
    return model.eval().fuse() if fused else model.eval()


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


# -- a folder that timm wrote for the hub ----------------------------------------------------


def read_timm(folder: str | Path, **overrides: Any) -> nn.Module:
    """What timm wrote, in eval mode, with what its config says as `notes`."""
    config = json.loads((Path(folder) / "config.json").read_text())
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, **overrides)
    model.notes = _notes(card(model), config.get("label_names"))
    return model.eval()


def _notes(about: dict[str, Any], names: Sequence[str] | dict[str, str] | None) -> dict[str, Any]:
    """In the words that a run leaves behind."""
    test = {
        "size": about["input_size"][1],
        "crop": about["crop_pct"],
        "interpolation": about["interpolation"],
    }
    if names is None:
        return {"test": test}
    order = [names[key] for key in sorted(names, key=int)] if isinstance(names, dict) else names
    return {"classes": list(order), "test": test}
