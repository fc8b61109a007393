"""saccade: attention in a vision backbone at the price of a convolution.

    import saccade
    model = saccade.build("linglo_b0", num_classes=10)              fresh weights, timm's protocol
    answer = saccade.load("linglo_nano").predict("cat.jpg")         a trained model, and a picture
    run = saccade.train("scratch", data="FOLDER")                   a run: metrics, figures, model

Importing it registers every variant with timm.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade import samples
from saccade.version import __version__

if TYPE_CHECKING:
    from saccade.face.register import register
    from saccade.face.training import TrainedRun, train
    from saccade.models.graft import graft
    from saccade.models.saved import load, save
    from saccade.models.zoo import build, names
    from saccade.ops.native import kernels

__all__ = [
    "TrainedRun", "__version__", "build", "graft", "kernels", "load", "names", "register",
    "samples", "save", "train",
]  # fmt: skip
PLACES = {
    "TrainedRun": "saccade.face.training",
    "build": "saccade.models.zoo",
    "graft": "saccade.models.graft",
    "kernels": "saccade.ops.native",
    "load": "saccade.models.saved",
    "names": "saccade.models.zoo",
    "register": "saccade.face.register",
    "save": "saccade.models.saved",
    "train": "saccade.face.training",
}
LATE = {"TrainedRun", "register", "train"}
"""What is imported when it is first used: it needs more than a model does."""


def _is_command() -> bool:
    """Whether this process is the program `saccade`, or `python -m saccade`.

    That program answers `--help` without torch; a command that needs models imports them itself.
    """
    words = getattr(sys, "argv", None) or [""]
    if words[0] == "-m":  # Python looks for the module that it is to run
        return sys.orig_argv[-len(words)].removeprefix("-m") == "saccade"
    return Path(words[0]).name in ("saccade", "saccade.exe")


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'saccade' has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})


if not _is_command():
    for _name in PLACES.keys() - LATE:
        globals()[_name] = __getattr__(_name)
