"""Small trained models that come with the package, each with its card beside it.

    saccade.load("linglo_nano.pets37")                      or "linglo_nano"
    timm.create_model("linglo_nano", pretrained=True)       with any num_classes

A name is a variant's and, after the dot, what it was trained on, as timm writes it.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
FILES = {path.name.removesuffix(".safetensors"): path for path in FOLDER.glob("*.safetensors")}
NAMES = tuple(sorted(FILES))


def full(name: str) -> str | None:
    """The name with what it was trained on; None of a model that comes without weights."""
    return next((known for known in NAMES if name in (known, known.partition(".")[0])), None)


def about(name: str) -> str:
    """The card: data, recipe, command, accuracy, licence."""
    return FILES[name].with_suffix(".md").read_text()
