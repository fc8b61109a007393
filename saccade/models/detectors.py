"""The detectors and segmenters of the papers' tables, by name."""

from collections.abc import Callable
from typing import Any

from saccade.models import linglo_retinanet, sasa_retinanet, semantic_fpn
from saccade.paper import Claim

FAMILIES: dict[str, dict[str, Callable[[], Any]]] = {
    "linglo": {**linglo_retinanet.DETECTORS, **semantic_fpn.SEGMENTERS},
    "sasa": {**sasa_retinanet.DETECTORS},
}
DETECTORS = {name: make for family in FAMILIES.values() for name, make in family.items()}
CLAIMS: dict[str, tuple[Claim, ...]] = {
    **linglo_retinanet.CLAIMS, **semantic_fpn.CLAIMS, **sasa_retinanet.CLAIMS,
}  # fmt: skip


def names(family: str) -> list[str]:
    """The names of one paper's detectors."""
    return list(FAMILIES.get(family, ()))
