"""SemanticFPN: a class for every pixel, by Panoptic-FPN's semantic branch on any backbone.

    image -> backbone -> C2 to C5 -> semantic branch -> logits at 1/4 -> x4 bilinear

LinGlo's Table 4 puts it on its three backbones.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import timm
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.semantic import STRIDE, SemanticBranch, raised
from saccade.models.backbone import Backbone, Stage
from saccade.models.zoo import Classifier
from saccade.paper import Claim


class SemanticFPN(nn.Module):
    """A backbone and the branch over those of its maps that are at stride 4 or coarser."""

    def __init__(self, backbone: Backbone, classes: int = 150, dim: int = 256, inner: int = 128):
        super().__init__()
        self.backbone = backbone
        self.taken = [i for i, stride in enumerate(backbone.strides) if stride >= STRIDE]
        widths = [backbone.widths[i] for i in self.taken]
        strides = [backbone.strides[i] for i in self.taken]
        self.branch = SemanticBranch(widths, strides, classes, dim, inner)
        self.num_classes = classes
        self.default_cfg: dict[str, Any] = {}
        self.made: dict[str, Any] = {}  # the arguments of `build`
        self.fused = False

    def forward(
        self, image: Float[Tensor, "B C H W"], coarse: bool = False
    ) -> Float[Tensor, "B K h w"]:
        """Logits of every pixel; of every fourth each way, before the last x4, if `coarse`."""
        size: Sequence[int] = image.shape[2:]
        maps = self.backbone(image)
        logits = self.branch([maps[i] for i in self.taken], size)
        return logits if coarse else raised(logits, STRIDE, size)

    def fuse(self) -> "SemanticFPN":
        """Re-parameterise the backbone for deployment, exactly."""
        for module in list(self.backbone.modules()):
            fuse = getattr(module, "fuse", None)
            if callable(fuse):
                fuse()
        self.fused = True
        return self

    def start_from(self, other: nn.Module) -> None:
        """Take the backbone's weights of a classifier or a segmenter of the same architecture."""
        theirs = getattr(other, "default_cfg", {}).get("architecture")
        mine = self.default_cfg.get("architecture")
        if theirs != mine:
            raise ValueError(
                f"model.start: the weights are of a {theirs!r} and the backbone is a {mine!r}; "
                f"set model.name={theirs}"
            )
        weights = cast(nn.Module, other.backbone).state_dict()
        own = self.backbone.state_dict()
        if any(name not in weights or weights[name].shape != own[name].shape for name in own):
            raise ValueError(
                "model.start: the weights were built with other options than the recipe's"
            )
        self.backbone.load_state_dict({name: weights[name] for name in own})

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        for stage in self.backbone.modules():
            if isinstance(stage, Stage):
                stage.checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict:
        """As the backbone's classifier has it; the branch learns as a head does."""
        return Classifier.group_matcher(cast(Any, self), coarse)

    def describe(self) -> dict[str, Any]:
        """What `build` makes this net of again."""
        return {"kind": "semantic_fpn", **self.made, "fused": self.fused}


def features(
    name: str, in_chans: int = 3, drop_path: float | None = None, **options: Any
) -> tuple[Backbone, dict[str, Any]]:
    """A fresh backbone by name, and timm's card of it."""
    if drop_path is not None:
        options["drop_path_rate"] = drop_path
    whole: Any = timm.create_model(name, num_classes=0, in_chans=in_chans, **options)
    if not isinstance(whole, Classifier):
        raise ValueError(f"semantic_fpn: {name!r} is no backbone of saccade; see 'saccade list'")
    whole.backbone.norm = nn.Identity()  # a classifier's, which no map comes through
    return whole.backbone, dict(whole.default_cfg)


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
    backbone, card = features(name, in_chans, drop_path, **options)
    net = SemanticFPN(backbone, classes, dim, inner)
    net.default_cfg = card
    net.made = {
        "name": name, "classes": classes, "dim": dim, "inner": inner, "in_chans": in_chans,
        "drop_path": drop_path, **options,
    }  # fmt: skip
    return net


SEGMENTERS = {
    f"linglo_{size}_semantic_fpn": partial(build, f"linglo_{size}") for size in ("b0", "b1", "b2")
}

_FUSED = (
    "all printed counts are those another paper prints for its own backbones (PVTv2); with four "
    "branches in RP-CPE ours is 29.6M, fused for deployment 28.9M"
)

CLAIMS = {
    "linglo_b0_semantic_fpn": (
        Claim("Table 4", "params", "7.6M"),
        Claim("Table 4", "mIoU", "37.3"),
    ),
    "linglo_b1_semantic_fpn": (
        Claim("Table 4", "params", "17.8M"),
        Claim("Table 4", "mIoU", "42.5"),
    ),
    "linglo_b2_semantic_fpn": (
        Claim("Table 4", "params", "29.1M", differs=_FUSED),
        Claim("Table 4", "mIoU", "45.2"),
    ),
}
