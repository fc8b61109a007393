"""The kinds of trials: what each counts, how many are usual, and how long one may take."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from tools.campaign.verdict import Outcome


class Kind(Protocol):
    """Made once with a folder for what all its trials share."""

    def __init__(self, place: Path): ...

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        """One trial in an empty folder, drawn by chance; raises `Finding`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What is said of a kind before it is imported."""

    module: str
    name: str
    usual: int
    """Trials if neither minutes nor a count is asked for."""
    unit: str
    patience: float = 60.0
    """Seconds until a trial that does not end is a finding."""

    def make(self) -> Callable[[Path], Kind]:
        return getattr(import_module(f"tools.campaign.{self.module}"), self.name)


KINDS = {
    "kills": Plan("kills", "Kills", 20, "SIGKILLs of runs", 3600),
    "ranks": Plan("ranks", "Ranks", 5, "SIGKILLs of one of two ranks", 3600),
    "disk": Plan("disk", "Disks", 10, "full disks", 3600),
    "checkpoints": Plan("checkpoints", "Damages", 500, "damaged runs"),
    "images": Plan("images", "Pictures", 2000, "damaged images"),
    "overrides": Plan("overrides", "Words", 2000, "overrides, recipes, headers"),
    "annotations": Plan("annotations", "Annotations", 1000, "annotations"),
    "payloads": Plan("payloads", "Payloads", 100, "strangers' files"),
    "reports": Plan("reports", "Reports", 300, "reports of strangers' runs"),
    "server": Plan("server", "Requests", 200, "requests"),
}
UNITS = {name: plan.unit for name, plan in KINDS.items()}
