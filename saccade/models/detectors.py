"""The detectors that the papers print, by name; any other is a `build` of its kind away."""

from typing import Any

from saccade.models import linglo_retinanet, sasa_retinanet
from saccade.paper import Claim

FAMILIES: dict[str, Any] = {"linglo": linglo_retinanet, "sasa": sasa_retinanet}
DETECTORS = {name: make for family in FAMILIES.values() for name, make in family.DETECTORS.items()}
CLAIMS: dict[str, tuple[Claim, ...]] = {
    name: claims for family in FAMILIES.values() for name, claims in family.CLAIMS.items()
}


def names(family: str) -> list[str]:
    """The detectors of one paper."""
    return list(FAMILIES[family].DETECTORS) if family in FAMILIES else []
