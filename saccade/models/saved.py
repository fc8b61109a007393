"""Models on disk: one safetensors file that holds the weights and how to build their model.

The header's `saccade` entry is JSON: variant, timm's arguments, the backbone's own, fused or not;
for a detector, its kind and the arguments of that kind's `build`.
"""

import json
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import nn

from saccade import weights
from saccade.layers.branches import fit_norms
from saccade.models.describe import describe, timm_config

# Nets that are no classifiers: their `describe` names one of these, whose `build` makes them again.
KINDS = {
    "retinanet": "saccade.models.retinanet",
    "detr": "saccade.models.detr",
    "semantic_fpn": "saccade.models.semantic_fpn",
    "autoencoder": "saccade.models.autoencoder",
}
BUILDERS: dict[str, Callable[..., nn.Module]] = {}
"""The same of networks that are defined elsewhere."""


def register_builder(kind: str, build: Callable[..., nn.Module]) -> None:
    """Make a network known that is no model of timm's, so that `load` can build it again.

    Args:
        kind: what its `describe()` gives as "kind"
        build: makes the network from the rest of what `describe()` gives
    """
    if kind in KINDS or BUILDERS.get(kind, build) is not build:
        raise ValueError(f"register: a network of kind {kind!r} is known already; rename yours")
    BUILDERS[kind] = build


def save(
    model: nn.Module,
    path: str | Path,
    tensors: dict[str, torch.Tensor] | None = None,
    **notes: object,
) -> Path:
    """Write a model to one file, so that `load` can build it again and fill in its weights.

    Args:
        model: a model of saccade or timm
        path: the file, usually *.safetensors; an older one is replaced once the new one is whole
        tensors: weights to write instead of the model's own, which may lie on other processes
        notes: anything that JSON can hold, kept in the file's header (`load(path).notes`)

    Returns:
        the path
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
    """The file with the header's entries sorted, so that equal models are equal files.

    safetensors writes them in any order.
    """
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
    """A trained model in eval mode, with its weights and its `notes`.

    Args:
        path: a file that `save` wrote, a run's folder (its best model is taken), the name of a
            model that comes with saccade, or a folder that timm wrote for the hub
        overrides: arguments of the model that replace those it was saved with

    Returns:
        the model; `model.notes` is what was given to `save`
    """
    source = located(path)
    if source is None:
        raise FileNotFoundError(
            f"load: no file {str(path)!r}; give the path that save() returned, "
            f"or one of {', '.join(weights.NAMES)}"
        )
    path = source
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
    header = json.loads(about)
    model = _built(header["model"], overrides, str(path))
    fill(model, tensors, str(path))
    model.notes = header["notes"]
    return model


def _built(about: dict[str, Any], overrides: dict[str, Any], source: str) -> nn.Module:
    """A model with fresh weights, built from its description, in eval mode."""
    if overrides.get("features_only"):
        raise ValueError("load: gives whole models; for features, load and take model.backbone")
    about = {**about, **overrides}
    fused, kind = about.pop("fused", False), about.pop("kind", None)
    if kind is None:
        model: Any = timm.create_model(about.pop("name"), **about)
    elif kind in BUILDERS:
        model = cast(Any, BUILDERS[kind](**about))
    elif kind in KINDS:
        model = import_module(KINDS[kind]).build(**about)
    else:
        raise ValueError(f"load: {source!r} is a {kind!r}, which this version does not know")
    return model.eval().fuse() if fused else model.eval()


def fill(model: nn.Module, tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load a state dict, or say in one sentence why it belongs to another model."""
    fit_norms(model, tensors)
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
    """A model that timm saved, in eval mode; its `notes` are made of timm's config."""
    config = json.loads((Path(folder) / "config.json").read_text())
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, **overrides)
    model.notes = _notes(timm_config(model), config.get("label_names"))
    return model.eval()


def _notes(about: dict[str, Any], names: Sequence[str] | dict[str, str] | None) -> dict[str, Any]:
    """timm's description as the notes that a run would save."""
    test = {
        "size": about["input_size"][1],
        "crop": about["crop_pct"],
        "interpolation": about["interpolation"],
    }
    if names is None:
        return {"test": test}
    order = [names[key] for key in sorted(names, key=int)] if isinstance(names, dict) else names
    return {"classes": list(order), "test": test}
