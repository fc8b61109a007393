"""SemanticFPN: a class for every pixel, by Panoptic-FPN's semantic branch on any backbone.

    image -> backbone -> C2 to C5 -> semantic branch -> logits at 1/4 -> x4 bilinear

LinGlo's Table 4 puts it on its three backbones.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.semantic import STRIDE, SemanticBranch, raised
from saccade.models import features
from saccade.models.detector import DenseNetwork
from saccade.models.features import Features
from saccade.paper import Claim


class SemanticFPN(DenseNetwork):
    """A backbone and the branch over those of its maps that are at stride 4 or coarser."""

    kind = "semantic_fpn"
    body = "backbone.body."

    def __init__(self, backbone: Features, classes: int = 150, dim: int = 256, inner: int = 128):
        super().__init__()
        self.backbone = backbone
        self.stages = [i for i, stride in enumerate(backbone.strides) if stride >= STRIDE]
        backbone.only(self.stages)
        widths = [backbone.widths[i] for i in self.stages]
        strides = [backbone.strides[i] for i in self.stages]
        self.branch = SemanticBranch(widths, strides, classes, dim, inner)
        self.num_classes = classes

    def forward(
        self, image: Float[Tensor, "B C H W"], coarse: bool = False
    ) -> Float[Tensor, "B K h w"]:
        """Logits of every pixel; of every fourth each way, before the last x4, if `coarse`."""
        size: Sequence[int] = image.shape[2:]
        maps = self.backbone(image)
        logits = self.branch([maps[i] for i in self.stages], size)
        return logits if coarse else raised(logits, STRIDE, size)

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier, a detector or a segmenter alike."""
        self.backbone.start_from(source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone, enable)


def build(
    name: str,
    classes: int = 150,
    dim: int = 256,
    inner: int = 128,
    in_chans: int = 3,
    drop_path: float | None = None,
    **options: Any,
) -> SemanticFPN:
    """SemanticFPN on the backbone called `name`; `options` are the backbone's own."""
    backbone = features.build(name, in_chans, drop_path, **options)
    net = SemanticFPN(backbone, classes, dim, inner)
    net.default_cfg = backbone.timm_config
    net.arguments = {
        "name": name, "classes": classes, "dim": dim, "inner": inner, "in_chans": in_chans,
        "drop_path": drop_path, **options,
    }  # fmt: skip
    return net


SEGMENTERS = {
    f"linglo_{size}_semantic_fpn": partial(build, f"linglo_{size}") for size in ("b0", "b1", "b2")
}

_PVT = "all printed counts are those another paper prints for its own backbones (PVTv2)"


def _ours(branches: str, normalised: str, fused: str) -> str:
    return (
        f"{_PVT}; ours has {normalised} with four normalised branches in RP-CPE ({branches} "
        f"without their norms), and {fused} when they are fused for deployment"
    )


CLAIMS = {
    "linglo_b0_semantic_fpn": (
        Claim("Table 4", "params", "7.6M", differs=_ours("7.6M", "7.7M", "7.5M")),
        Claim("Table 4", "mIoU", "37.3"),
    ),
    "linglo_b1_semantic_fpn": (
        Claim("Table 4", "params", "17.8M", differs=_ours("17.8M", "17.9M", "17.5M")),
        Claim("Table 4", "mIoU", "42.5"),
    ),
    "linglo_b2_semantic_fpn": (
        Claim("Table 4", "params", "29.1M", differs=_ours("29.6M", "29.7M", "28.9M")),
        Claim("Table 4", "mIoU", "45.2"),
    ),
}
