"""Small trained models that come with the package, each with its card beside it.

    saccade.load("linglo_nano.pets37")                      or "linglo_nano"
    timm.create_model("linglo_nano", pretrained=True)       with any num_classes
    saccade.load("linglo_nano_semantic_fpn")                a segmenter: no model of timm's

A name is a model's and, after the dot, what it was trained on, as timm writes it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FILES = {path.name.removesuffix(".safetensors"): path for path in FOLDER.glob("*.safetensors")}
NAMES = tuple(sorted(FILES))
TAUGHT = "_distilled"  # after the set's name: learnt a teacher's own classes beside the set's
LICENCES = {  # of the weights, by what they were trained on, as SPDX has it
    "cifar10": "apache-2.0",
    "cifar10_distilled": "apache-2.0",
    "clothing10": "apache-2.0",
    "pets37": "cc-by-sa-4.0",
    "pets_heads_trimaps": "cc-by-sa-4.0",
}


def full(name: str) -> str | None:
    """The name with what it was trained on; None of a model that comes without weights."""
    return next(
        (full_name for full_name in NAMES if name in (full_name, full_name.partition(".")[0])), None
    )


def start(name: str) -> str | None:
    """The weights that training begins with: those that learnt from a teacher too, if there are."""
    distilled = (
        known for known in NAMES if known.startswith(f"{name}.") and known.endswith(TAUGHT)
    )
    return next(distilled, full(name))


def about(name: str) -> str:
    """The card: data, recipe, command, accuracy, licence."""
    return FILES[name].with_suffix(".md").read_text()


@cache
def header(name: str) -> dict[str, Any]:
    """What a file says about itself: `model`, which builds it again, and `notes`."""
    with FILES[name].open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(json.loads(file.read(length))["__metadata__"]["saccade"])


def classifiers() -> tuple[str, ...]:
    """Those that timm's `create_model` makes; all others are networks of a kind of their own."""
    return tuple(name for name in NAMES if "kind" not in header(name)["model"])
