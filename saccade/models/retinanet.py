"""RetinaNet on any backbone: the network alone, without anchors and losses.

    image -> backbone -> pyramid P3 to P7 -> for each level, class logits and box offsets

The pyramid stands on the last three maps: C3 to C5, at strides 8, 16 and 32 where the backbone
ends at 32, and has two coarser levels. It may stand on fewer (`maps`), with more coarser levels,
five in all; by itself it leaves out maps finer than a stride of 4. A pixel of a level has anchors
of 3 shapes and `scales` sizes (`saccade.layers.anchors`).
"""

from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.anchors import RATIOS
from saccade.layers.pyramid import DenseHead, FeaturePyramid
from saccade.models import features, zoo
from saccade.models.detector import DenseNetwork, Maps, split_arguments

LEVELS = 5  # of the pyramid
FINEST = 4  # stride of a map that it stands on, unless it is said


class RetinaNetDetector(DenseNetwork):
    """A backbone, a pyramid over its last maps, and two heads.

    fpn, heads  "conv" or "attention" (SASA's surgery)
    border      what attention there sees beyond a map's edge: nothing ("mask"), or zeros ("zero")
    coarse      what P6 is made from: "C5", the backbone's last map, or "P5"
    norm        BatchNorm in the heads, one for each level
    levels_norm BatchNorm on the pyramid's levels
    locality    how narrowly attention there looks at first; 0: as the paper has it
    maps        how many of the backbone's last maps the pyramid stands on, 1 to 3; None: three, or
                fewer where these are finer than a stride of 4
    dim, depth  channels of pyramid and heads; layers of a head before its last
    scales      sizes of anchors a level; with 3 shapes each
    init        how new layers are drawn: "xavier", or "retinanet": N(0, 0.01) in the heads
    """

    kind = "retinanet"
    body = "backbone.body."

    def __init__(
        self,
        backbone: nn.Module,
        classes: int,
        *,
        fpn: str = "conv",
        heads: str = "conv",
        coarse: str = "C5",
        norm: bool = False,
        dim: int = 256,
        depth: int = 4,
        scales: int = 3,
        init: str = "xavier",
        border: str = "mask",
        levels_norm: bool = False,
        locality: float = 0.0,
        maps: int | None = None,
    ):
        super().__init__()
        body = cast(Maps, backbone)
        if maps is None:
            maps = max(sum(stride >= FINEST for stride in body.strides[-3:]), 1)
        if not 1 <= maps <= 3:
            raise ValueError(f"RetinaNetDetector: maps lies in 1..3, got {maps=}")
        fine, *_ = strides = body.strides[-maps:]
        if strides != tuple(fine * 2**i for i in range(maps)):
            raise ValueError(
                f"RetinaNetDetector: the pyramid stands on {maps} maps, each half as fine as the "
                f"one before, got strides={body.strides}; try a backbone with stages"
            )
        if isinstance(backbone, features.Features):
            count = len(backbone.strides)
            backbone.only(range(count - maps, count))
        self.num_classes, self.maps = classes, maps
        self.backbone = backbone
        self.pyramid = FeaturePyramid(
            body.widths[-maps:], dim, fpn, coarse, init, border, levels_norm, locality,
            LEVELS - maps,
        )  # fmt: skip
        self.strides = tuple(fine * 2**i for i in range(self.pyramid.levels))
        self.scales = scales
        self.anchors = scales * len(RATIOS)  # a place

        def head(out: int, prior: float | None = None) -> DenseHead:
            return DenseHead(
                self.anchors * out, dim, depth, self.pyramid.levels, heads, prior, norm, init,
                border, locality,
            )  # fmt: skip

        self.classify = head(classes, prior=0.01)
        self.locate = head(4)

    def forward(self, image: Float[Tensor, "B C H W"]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits B (anchors classes) H W and offsets B (anchors 4) H W, by level, finest first."""
        levels = self.pyramid(self.backbone(image)[-self.maps :])
        return self.classify(levels), self.locate(levels)

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier or a detector of the same architecture."""
        cast(features.Features, self.backbone).start_from(source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone, enable)


# What `build` takes of a recipe's task; the rest of that is the loss's and the prediction's.
WORDS = (
    "fpn", "heads", "coarse", "norm", "dim", "depth", "scales", "init", "border", "levels_norm",
    "locality", "maps",
)  # fmt: skip


def as_written(about: dict[str, Any]) -> dict[str, Any]:
    """A file's arguments; earlier versions stated no border, and saw zeros beyond it.

    Their pyramids stood on three maps, whatever these were.
    """
    settings = about.get("settings")
    if isinstance(settings, dict) and "maps" not in settings:
        about = {**about, "settings": (settings := {"maps": 3, **settings})}
    if not isinstance(settings, dict) or "attention" not in (
        settings.get("fpn"), settings.get("heads"),
    ):  # fmt: skip
        return about
    return {**about, "settings": {"border": "zero", **settings}}


def build(name: str, classes: int, settings: Any = None, **words: Any) -> RetinaNetDetector:
    """The detector on the backbone called `name`, of saccade or timm.

    The arguments of `RetinaNetDetector` come by `settings` (a recipe's task, or a dict) or by name;
    further words are the backbone's (`drop_path`, `in_chans`, `window`, ...). `border` by name is
    that of both, where the backbone is SASA's.
    """
    own, options = split_arguments(WORDS, settings, words)
    own.setdefault("border", "mask")  # so that a file states it
    own.setdefault("maps", None)
    if settings is None and "border" in words and "border" in zoo.unstated_arguments(name):
        options["border"] = words["border"]
    backbone = features.build(name, **options)
    net = RetinaNetDetector(backbone, classes, **own)
    net.default_cfg = backbone.timm_config
    net.arguments = {"name": name, "classes": classes, "settings": own, **options}
    return net
