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

CLAIMS = {
    "linglo_b0_retinanet": (
        Claim("Table 3", "params", "13.0M"),
        Claim("Table 3", "AP", "38.0"),
    ),
    "linglo_b1_retinanet": (
        Claim("Table 3", "params", "23.8M"),
        Claim("Table 3", "AP", "41.5"),
    ),
    "linglo_b2_retinanet": (
        Claim("Table 3", "params", "35.1M", differs=PVT),
        Claim("Table 3", "AP", "44.7"),
    ),
}
