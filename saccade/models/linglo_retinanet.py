"""LinGlo's detectors: RetinaNet on its backbones, as Table 3 lists them.

80 classes, 9 anchors a place, P6 from C5, no norm in the heads, new layers drawn by Xavier.
"""

from functools import partial

from saccade.models.linglo import PVT
from saccade.models.retinanet import build
from saccade.paper import Claim

DETECTORS = {
    "linglo_b0_retinanet": partial(build, "linglo_b0", 80),
    "linglo_b1_retinanet": partial(build, "linglo_b1", 80),
    "linglo_b2_retinanet": partial(build, "linglo_b2", 80),
}

# Over all overlaps, at 0.5 and 0.75; of small, medium and large objects.
PRECISIONS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def precisions(*printed: str) -> tuple[Claim, ...]:
    """A row of Table 3 from AP to the AP of large objects."""
    return tuple(
        Claim("Table 3", what, value) for what, value in zip(PRECISIONS, printed, strict=True)
    )


def _ours(branches: str, normalised: str, fused: str) -> str:
    return (
        f"{PVT}: {normalised} with four normalised branches in RP-CPE ({branches} without their "
        f"norms), {fused} when they are fused for deployment"
    )


CLAIMS = {
    "linglo_b0_retinanet": (
        Claim("Table 3", "params", "13.0M", differs=_ours("13.0M", "13.1M", "12.9M")),
        *precisions("38.0", "58.3", "40.2", "22.8", "41.2", "49.6"),
    ),
    "linglo_b1_retinanet": (
        Claim("Table 3", "params", "23.8M", differs=_ours("23.8M", "23.9M", "23.5M")),
        *precisions("41.5", "62.4", "44.5", "27.1", "45.4", "53.9"),
    ),
    "linglo_b2_retinanet": (
        Claim("Table 3", "params", "35.1M", differs=_ours("35.5M", "35.7M", "34.9M")),
        *precisions("44.7", "65.8", "47.9", "28.0", "48.9", "57.8"),
    ),
}
