"""Save and load models: one safetensors file with the weights and the model's description.

The header's `saccade` entry is JSON: variant, timm's arguments, the backbone's own, fused or not;
for a detector, its kind and the arguments of that kind's `build`.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import nn

from saccade import files, outside, weights
from saccade.layers.branches import fit_norms
from saccade.models import arguments
from saccade.models.card import as_trained, untrained_head
from saccade.models.describe import describe, known_config, timm_config
from saccade.models.face import answering
from saccade.models.graft import again
from saccade.models.zoo import Classifier, unstated_arguments
from saccade.version import FORMATS, check_format

# Nets that are no classifiers: their `describe` names one of these, whose `build` makes them again.
KINDS = {
    "retinanet": "saccade.models.retinanet",
    "detr": "saccade.models.detr",
    "rtdetr": "saccade.models.rtdetr",
    "mask_rcnn": "saccade.models.mask_rcnn",
    "semantic_fpn": "saccade.models.semantic_fpn",
    "upernet": "saccade.models.upernet",
    "mask2former": "saccade.models.mask2former",
    "autoencoder": "saccade.models.autoencoder",
    "upscaler": "saccade.models.upscaler",
}
GROUPS = ("task", "test")  # kinds of notes, which modules from outside may extend
PROGRAMS = frozenset({".pt2", ".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".npy", ".onnx"})
"""Endings of files that are exported, or that a pickle is in."""
BLOCK = re.compile(r"\bstages\.(\d{1,3})\.blocks\.(\d{1,4})\.")
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
    cure: str = files.MAKE_ROOM,
    **notes: object,
) -> Path:
    """Write a model to one file, so that `load` can build it again and fill in its weights.

    Args:
        model: a model of saccade or timm
        path: the file, usually *.safetensors; an older one is replaced once the new one is whole
        tensors: weights to write instead of the model's own, which may lie on other processes
        cure: what an error says to do where the disk is full
        notes: anything that JSON can hold, kept in the file's header (`load(path).notes`)

    Returns:
        the path
    """
    path = Path(path)
    about: dict[str, Any] = {
        "format": FORMATS["model"], "model": describe(model), "notes": notes,
    }  # fmt: skip
    groups = [notes.get(name) for name in GROUPS]
    kinds = [group.get("kind") for group in groups if isinstance(group, dict)]
    imports = outside.needed([*outside.words_in(about["model"]), *kinds])
    if imports:
        about["imports"] = imports
    tensors = model.state_dict() if tensors is None else tensors
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = {"format": "pt", "saccade": json.dumps(about)}
    return files.write(path, _settled(serialised(tensors, metadata=about)), cure)


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
        file = path / "model.safetensors"
        if not file.is_file():
            raise FileNotFoundError(
                f"{str(path)!r} holds no trained model yet; "
                f"one is written with the first evaluation"
            )
        cache = path.resolve().parent.parent / "blobs"  # where the hub's client keeps files
        if not (files.inside(file, path) or files.inside(file, cache)):
            raise ValueError(
                f"{str(file)!r} is a link out of its folder, which is not followed; "
                f"give the file itself"
            )
        return file
    if path.is_file():
        return path
    name = weights.full(str(model))
    return weights.FILES[name] if name else None


def architecture(model: str | Path) -> str | None:
    """The name of the network that a trained model is of, or whose backbone it has.

    None where there is no such model, or it does not say; `load` tells why.
    """
    try:
        source = located(model)
        if source is None:
            return None
        with safe_open(source, "pt") as file:
            about = (file.metadata() or {}).get("saccade")
        name = None if about is None else _header(about, str(source))[0].get("name")
        return name if isinstance(name, str) else None
    except (OSError, ValueError, SafetensorError):
        return None


def load(path: str | Path, **overrides: Any) -> nn.Module:
    """A trained model in eval mode, with its weights and its `notes`.

    Args:
        path: a file that `save` wrote, a run's folder (its best model is taken), the name of a
            model that comes with saccade, or a folder that timm wrote for the hub
        overrides: arguments of the model that replace those it was saved with; `num_classes` gives
            it a new classifier, as in timm

    Returns:
        the model, a model of timm's in all respects; `model.predict`, `model.attention` and
        `model.transform` take pictures, `model.default_cfg` says how it was trained, and
        `model.notes` is what was given to `save`
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
        if path.suffix in PROGRAMS:
            raise ValueError(
                f"load: {str(path)!r} is no safetensors file, and others may run code once they "
                f"are opened; give the run or the *.safetensors that it was made of"
            ) from error
        raise ValueError(
            f"load: {str(path)!r} is truncated or no safetensors file ({error}); "
            f"copy it again from where it was saved"
        ) from error
    if about is None and (path.parent / "config.json").is_file():
        return _read_timm(path.parent, tensors, overrides)
    if about is None:
        raise ValueError(
            f"load: {str(path)!r} holds weights but not their model; "
            f"build the model by name and use its load_state_dict"
        )
    described, notes = _header(about, str(path))
    classes, overrides = _head(overrides)
    model = _built(described, overrides, tensors, str(path))
    return _with_notes(model, notes, classes, str(path))


def _head(overrides: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """The number of classes of a new classifier, or None, and the other overrides."""
    rest = {key: value for key, value in overrides.items() if key != "num_classes"}
    classes = overrides.get("num_classes")
    if classes is not None and (type(classes) is not int or classes < 0):
        raise ValueError(f"load: num_classes is a whole number, 0 or more, got {classes!r}")
    return classes, rest


def _with_notes(model: Any, notes: dict[str, Any], classes: int | None, source: str) -> nn.Module:
    """The model with its notes, described as it was trained, and with a new classifier if asked."""
    card = known_config(model)
    if card is not None:
        model.default_cfg = model.pretrained_cfg = as_trained(card, notes)
    if classes is not None and classes != model.num_classes:
        if not callable(getattr(model, "reset_classifier", None)):
            raise ValueError(
                f"load: {source!r} is no classifier, so num_classes cannot replace a part of it; "
                f"train it for other classes with model.start"
            )
        model.reset_classifier(classes)
        notes = {key: value for key, value in notes.items() if key != "classes"}
        card = untrained_head(model.pretrained_cfg, classes)
        model.default_cfg = model.pretrained_cfg = card
    model.notes = notes
    return answering(model)


def _header(text: str, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model and the notes in a file's header."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"load: {source!r} has a header that cannot be read ({error}); save the model again"
        ) from error
    if isinstance(header, dict):
        check_format("model", header.get("format"), source)
    match header:
        case {"model": dict(model)} if "name" in model or "kind" in model:
            outside.check(header.get("imports"), f"load: {source!r}")
            notes = header.get("notes", {})
        case _:
            raise ValueError(
                f"load: {source!r} has a header without the name of its model; save it again"
            )
    groups = ("task", "test", "data", "figures")
    if not isinstance(notes, dict) or any(type(notes.get(k, {})) is not dict for k in groups):
        raise ValueError(f"load: {source!r} has notes that saccade does not write; save it again")
    names = notes.get("classes", [])
    if type(names) is not list or not all(type(name) is str for name in names):
        raise ValueError(f"load: {source!r} has class names that are no text; save it again")
    if any(control(name) for name in names):
        raise ValueError(f"load: {source!r} has class names with control characters; rename them")
    return model, notes


def control(name: str) -> bool:
    """Whether a name holds characters that terminals obey instead of showing them."""
    return any(unicodedata.category(letter) == "Cc" for letter in name)


def _unstated(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The arguments that a file's header does not state, by the version that wrote it.

    The number of blocks of each stage is read off the names of its tensors.
    """
    defaults = unstated_arguments(name)
    if "depths" in defaults:
        blocks = [BLOCK.search(tensor) for tensor in tensors]
        counts: dict[int, int] = {}
        for stage, block in (map(int, match.groups()) for match in blocks if match):
            counts[stage] = max(counts.get(stage, 0), block + 1)
        defaults["depths"] = tuple(counts[stage] for stage in sorted(counts)) or defaults["depths"]
    return defaults


def _built(
    about: dict[str, Any], overrides: dict[str, Any], tensors: dict[str, Any], source: str
) -> Any:
    """The model of a description in eval mode, with these weights.

    The description is checked first, then the shapes of its model on the meta device.
    """
    if overrides.get("features_only"):
        raise ValueError("load: gives whole models; for features, load and take model.backbone")
    name = about.get("name")
    defaults = _unstated(name, tensors) if isinstance(name, str) else {}
    about = {**defaults, **{key: value for key, value in about.items() if key != "pretrained"}}
    fused, kind = about.pop("fused", False), about.pop("kind", None)
    grafts = about.pop("grafts", [])
    if kind is None:
        build = None
    elif not isinstance(kind, str):
        raise ValueError(f"load: {source!r} has a header without the kind of its model")
    elif kind in BUILDERS:
        build = BUILDERS[kind]
    elif kind in KINDS:
        module: Any = import_module(KINDS[kind])
        build, as_written = module.build, getattr(module, "as_written", None)
        about = as_written(about) if as_written else about
    else:
        raise ValueError(f"load: {source!r} is a {kind!r}, which this version does not know")
    try:
        arguments.check(about, build, len(tensors))
    except ValueError as error:
        raise ValueError(f"load: {source!r}: {error}; it is not a file of saccade's") from error
    about |= overrides

    def make() -> nn.Module:
        net: Any = build(**about) if build else timm.create_model(**_timm_words(about))
        if build is None and not isinstance(net, Classifier):
            own = ("name", "num_classes", "in_chans")
            net.options = {key: value for key, value in about.items() if key not in own}
        again(net, grafts)
        fit_norms(net, tensors)
        return net.eval().fuse() if fused else net.eval()

    try:
        with torch.device("meta"):
            _fits(make(), tensors, source)
    except _MisfitError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # some models of timm need memory; they are built below
        del error
    try:
        model = make()
    except ImportError:
        raise
    except Exception as error:  # whatever a model says about arguments that do not fit
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"load: {source!r}: its model cannot be built ({why}); save it again"
        ) from error
    fill(model, tensors, source)
    return model


def _timm_words(about: dict[str, Any]) -> dict[str, Any]:
    return {"model_name": about["name"], **{k: v for k, v in about.items() if k != "name"}}


class _MisfitError(ValueError):
    """The weights belong to another model."""


def _fits(model: nn.Module, tensors: dict[str, torch.Tensor], source: str) -> None:
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in tensors:
            raise _MisfitError(f"load: {source!r} is of another model: it has no {name!r}")
        if tensors[name].shape != tensor.shape:
            raise _MisfitError(
                f"load: {source!r} is of another model: {name!r} is "
                f"{tuple(tensors[name].shape)} there and {tuple(tensor.shape)} here"
            )
    for name in tensors:
        if name not in own:
            raise _MisfitError(f"load: {source!r} is of another model: {name!r} has no place here")


def fill(model: nn.Module, tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load a state dict, or say in one sentence why it belongs to another model."""
    fit_norms(model, tensors)
    _fits(model, tensors, source)
    model.load_state_dict(tensors)


# -- a folder that timm wrote for the hub ----------------------------------------------------

CARD = (
    "input_size", "fixed_input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std",
    "num_classes", "pool_size", "first_conv", "classifier",
)  # fmt: skip


def _read_timm(
    folder: Path, tensors: dict[str, torch.Tensor], overrides: dict[str, Any]
) -> nn.Module:
    """A model that timm saved, in eval mode; its `notes` are made of timm's config.json."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        card = {
            key: config["pretrained_cfg"][key] for key in CARD if key in config["pretrained_cfg"]
        }
        about = {"name": config["architecture"], **config.get("model_args", {})}
        for key in ("num_classes", "global_pool"):
            if key in config:
                about.setdefault(key, config[key])
        arguments.check(about, None, len(tensors))
        arguments.check_card(card)
        names = _label_names(config.get("label_names"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_config(path, error) from error
    words: Any = _timm_words(about) | {"pretrained_cfg": {**card, "architecture": about["name"]}}
    weights_file = str(folder / "model.safetensors")
    try:
        with torch.device("meta"):
            _fits(timm.create_model(**words), tensors, weights_file)
    except _MisfitError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # some models of timm need memory; they are built below
        del error
    try:
        model: Any = timm.create_model(**words)
        notes = _notes(timm_config(model), names)
    except Exception as error:  # whatever a model says about arguments that do not fit
        raise _no_config(path, error) from error
    fill(model, tensors, weights_file)
    return _with_notes(model.eval(), notes, _head(overrides)[0], str(folder))


def _no_config(path: Path, error: Exception) -> ValueError:
    why = f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
    why = why or f"its model refuses it: {type(error).__name__}"
    return ValueError(f"load: {str(path)!r} is no config of timm's ({why})")


def _label_names(names: Any) -> list[str] | None:
    """The classes of timm's config, which has a list of them, or a dict with their numbers."""
    if names is None:
        return None
    if isinstance(names, dict):
        if any(not key.isdecimal() or len(key) > 9 for key in names):
            raise ValueError("label_names are not numbered")
        names = [names[key] for key in sorted(names, key=int)]
    if not isinstance(names, list) or any(type(n) is not str or control(n) for n in names):
        raise ValueError("label_names are no list of plain words")
    return names


def _notes(about: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    """timm's description as the notes that a run would save."""
    test = {
        "size": about["input_size"][1],
        "crop": about["crop_pct"],
        "interpolation": about["interpolation"],
    }
    return {"test": test} if names is None else {"classes": names, "test": test}
