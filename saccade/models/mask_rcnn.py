"""Mask R-CNN on any backbone, of torchvision's parts.

    image -> backbone -> pyramid -> proposals -> for each, a class, a box and a mask of 28 x 28

The pyramid stands on the backbone's last four maps (three, if it has no more) and ends in one
coarser level, of which proposals alone are made. `forward` ends at the pyramid: what follows looks
at single proposals, which differ between training and evaluation; `saccade.tasks.instances` calls
`net.proposals` and `net.heads`.
"""

import math
from collections import OrderedDict
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import LevelMapper

from saccade.models import features
from saccade.models.detector import DenseNetwork, Maps, split_arguments

RATIOS = (0.5, 1.0, 2.0)
LEVELS = 4  # of the backbone, at most
CANONICAL = 224, 4  # a proposal of this side is looked at on the level of stride 2 ** 4
BOX, MASK = 7, 14  # pixels a side of what the heads see of a proposal


class MaskRCNNDetector(DenseNetwork):
    """A backbone, a pyramid, proposals, and heads for boxes and masks.

    dim        channels of the pyramid and the mask head
    hidden     width of the two layers of the box head
    convs      layers of the mask head before its last two
    anchor     side of a level's square anchors, in strides
    proposals  how many an image
    sampled    how many of these the heads learn from
    """

    kind = "mask_rcnn"
    body = "backbone.body."

    def __init__(
        self,
        backbone: nn.Module,
        classes: int,
        *,
        dim: int = 256,
        hidden: int = 1024,
        convs: int = 4,
        anchor: float = 8.0,
        proposals: int = 1000,
        sampled: int = 512,
    ):
        super().__init__()
        maps = cast(Maps, backbone)
        count = min(LEVELS, len(maps.strides))
        strides = maps.strides[-count:]
        if any(b != 2 * a for a, b in pairwise(strides)):
            raise ValueError(
                f"MaskRCNNDetector: each map is half as fine as the one before, got "
                f"strides={maps.strides}; try a backbone with stages"
            )
        if isinstance(backbone, features.Features):
            every = len(backbone.strides)
            backbone.only(range(every - count, every))
        self.num_classes, self.count = classes, count
        self.backbone = backbone
        self.pyramid = FeaturePyramidNetwork(
            list(maps.widths[-count:]), dim, extra_blocks=LastLevelMaxPool()
        )
        self.strides = (*strides, 2 * strides[-1])
        anchors = StridedAnchors(self.strides, anchor)
        self.proposals = RegionProposalNetwork(
            anchors, RPNHead(dim, len(RATIOS)), fg_iou_thresh=0.7, bg_iou_thresh=0.3,
            batch_size_per_image=256, positive_fraction=0.5,
            pre_nms_top_n={"training": 2 * proposals, "testing": proposals},
            post_nms_top_n={"training": proposals, "testing": proposals}, nms_thresh=0.7,
        )  # fmt: skip
        self.heads = RoIHeads(
            _pool(strides, BOX), TwoMLPHead(dim * BOX**2, hidden),
            FastRCNNPredictor(hidden, classes + 1), fg_iou_thresh=0.5, bg_iou_thresh=0.5,
            batch_size_per_image=sampled, positive_fraction=0.25, bbox_reg_weights=None,
            score_thresh=0.05, nms_thresh=0.5, detections_per_img=100,
            mask_roi_pool=_pool(strides, MASK),
            mask_head=MaskRCNNHeads(dim, (dim,) * convs, 1),
            mask_predictor=MaskRCNNPredictor(dim, dim, classes + 1),
        )  # fmt: skip

    def forward(self, image: Float[Tensor, "B C H W"]) -> list[Tensor]:
        """The pyramid's maps, finest first; of the last one, proposals alone are made."""
        maps = self.backbone(image)[-self.count :]
        return list(self.pyramid(OrderedDict(zip(map(str, range(self.count)), maps, strict=True)))
                    .values())  # fmt: skip

    def maps_by_name(self, maps: list[Tensor]) -> dict[str, Tensor]:
        """Maps by the names that torchvision's parts know them by."""
        return OrderedDict((str(i), x) for i, x in enumerate(maps))

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier or a detector of the same architecture."""
        cast(features.Features, self.backbone).start_from(source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone, enable)


class StridedAnchors(AnchorGenerator):
    """torchvision's anchors at the strides that are known.

    torchvision divides sides instead, which is off where an image's side is no multiple of the
    stride.
    """

    def __init__(self, strides: tuple[int, ...], side: float):
        sizes = tuple((side * stride,) for stride in strides)
        super().__init__(cast(Any, sizes), (RATIOS,) * len(strides))
        self.places = strides

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        first = feature_maps[0]
        grids = [[int(side) for side in x.shape[-2:]] for x in feature_maps]
        steps = [[torch.tensor(s, device=first.device)] * 2 for s in self.places]
        self.set_cell_anchors(first.dtype, first.device)
        anchors = torch.cat(self.grid_anchors(grids, steps))
        return [anchors for _ in image_list.image_sizes]


def _pool(strides: tuple[int, ...], side: int) -> MultiScaleRoIAlign:
    """Proposals cut out of the level that suits their size, at scales that are known."""
    names = [str(i) for i in range(len(strides))]
    pool = MultiScaleRoIAlign(names, side, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    finest, coarsest = (round(math.log2(stride)) for stride in (strides[0], strides[-1]))
    pool.map_levels = LevelMapper(finest, coarsest, *CANONICAL)
    return pool


# What `build` takes of a recipe's task; the rest of that is the loss's and the prediction's.
WORDS = ("dim", "hidden", "convs", "anchor", "proposals", "sampled")


def build(name: str, classes: int, settings: Any = None, **words: Any) -> MaskRCNNDetector:
    """The detector on the backbone called `name`, of saccade or timm.

    The arguments of `MaskRCNNDetector` come by `settings` (a recipe's task, or a dict) or by name;
    further words are the backbone's.
    """
    own, options = split_arguments(WORDS, settings, words)
    backbone = features.build(name, **options)
    net = MaskRCNNDetector(backbone, classes, **own)
    net.default_cfg = backbone.timm_config
    net.arguments = {"name": name, "classes": classes, "settings": own, **options}
    return net
