"""Write models as folders for the Hugging Face hub, in timm's format; nothing is uploaded.

    config.json         timm's: architecture, arguments, classes, normalisation, size and crop
    model.safetensors   the weights; saccade's notes are in its header, where timm does not look
    README.md           the card

Once saccade is imported, timm knows its names:

    timm.create_model("hf-hub:SOMEONE/NAME", pretrained=True)
    timm.create_model("local-dir:FOLDER", pretrained=True)

So does transformers, which takes timm's models as its own (TimmWrapper, TimmBackbone):

    AutoModelForImageClassification.from_pretrained("FOLDER")
    pipeline("image-classification", "FOLDER")
    TimmBackbone.from_pretrained("local-dir:FOLDER", out_indices=(0, 1, 2, 3))

Its AutoBackbone.from_pretrained asks the hub about every name, also of a folder; a folder is read
by AutoBackbone.from_config(TimmBackboneConfig(backbone="local-dir:FOLDER"), pretrained=True).

`saccade.load("FOLDER")` reads the same folder, and one that timm wrote alone. Detectors, segmenters
and auto-encoders are no models of timm: theirs has no config.json, and `saccade.load` reads it.
"""

import json
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf
from torch import nn

from saccade import files
from saccade.models.describe import describe, timm_config
from saccade.models.saved import save

ELSEWHERE = ("name", "num_classes", "in_chans", "fused")  # what config.json has other words for


def of_timm(model: nn.Module) -> bool:
    """Whether timm can build it: a classifier, of saccade or its own."""
    about = describe(model)
    return "kind" not in about and timm.is_model(about["name"])


def write(
    model: nn.Module, folder: str | Path, text: str, input_settings: dict[str, Any], **notes: Any
) -> Path:
    """Write a folder that can be uploaded; `text` is its card, `notes` are those of `save`.

    `input_settings` are timm's for its pictures: input_size, crop_pct, interpolation.
    """
    folder = Path(folder)
    about = describe(model)
    if about.get("fused") and of_timm(model):
        raise ValueError("hub: timm knows no fused models; save it as it was before fuse()")
    folder.mkdir(parents=True, exist_ok=True)
    if of_timm(model):
        config = {"pretrained_cfg": _timm_config(model, input_settings)}
        if notes.get("classes"):
            config["label_names"] = list(notes["classes"])
        own = {key: value for key, value in about.items() if key not in ELSEWHERE}
        with files.writing(folder / "model.safetensors"):
            save_for_hf(model, str(folder), config, own, safe_serialization=True)
        _leave_classes_out(folder / "config.json")
    save(model, folder / "model.safetensors", **notes)
    files.write(folder / "README.md", text)
    return folder


def _leave_classes_out(path: Path) -> None:
    """Their number stands beside the model's arguments; transformers refuses it among them, too."""
    config = json.loads(path.read_bytes())
    config.get("model_args", {}).pop("num_classes", None)
    files.write(path, json.dumps(config, indent=2))


def _timm_config(model: nn.Module, input_settings: dict[str, Any]) -> dict[str, Any]:
    """timm's card of the model as it is now."""
    left_out = ("url", "file", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag")
    about = {key: value for key, value in timm_config(model).items() if value is not None}
    about = {key: value for key, value in about.items() if key not in left_out}
    about |= {**input_settings, "num_classes": model.num_classes}
    if about["input_size"][0] != 3:
        about["first_conv"] = None  # else timm would convert the first weights from three channels
    return about
