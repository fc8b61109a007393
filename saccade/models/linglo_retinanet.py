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


def _ours(branches: str, normalised: str, fused: str) -> str:
    return (
        f"{PVT}: {normalised} with four normalised branches in RP-CPE ({branches} without their "
        f"norms), {fused} when they are fused for deployment"
    )


CLAIMS = {
    "linglo_b0_retinanet": (
        Claim("Table 3", "params", "13.0M", differs=_ours("13.0M", "13.1M", "12.9M")),
        Claim("Table 3", "AP", "38.0"),
    ),
    "linglo_b1_retinanet": (
        Claim("Table 3", "params", "23.8M", differs=_ours("23.8M", "23.9M", "23.5M")),
        Claim("Table 3", "AP", "41.5"),
    ),
    "linglo_b2_retinanet": (
        Claim("Table 3", "params", "35.1M", differs=_ours("35.5M", "35.7M", "34.9M")),
        Claim("Table 3", "AP", "44.7"),
    ),
}
