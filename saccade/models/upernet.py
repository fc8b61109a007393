"""UperNet on any backbone, through transformers: pooled context above, a pyramid below.

    image -> backbone -> its maps of stride 4 and coarser
    P_5 = 3x3 conv of [C_5, its means over grids of 1, 2, 3 and 6 cells a side]
    P_i = C_i + P_i+1 enlarged, then a 3x3 conv
    logits = 1x1 conv of a 3x3 conv of [P_2, ..., P_5], all at stride 4

In training a further head on the map of stride 16 predicts the classes too. The heads are
transformers' own, with the weights that torch draws. What is ours: any backbone, and means over
grid cells as two products, which a graph can make of an image of any size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.semantic import STRIDE, raised
from saccade.models import features
from saccade.models.detector import DenseNetwork, split_arguments
from saccade.models.detr import transformers
from saccade.models.features import Features


class CellMeans(nn.Module):
    """The mean of a map in each cell of a grid, as `nn.AdaptiveAvgPool2d` has it.

        y_ab = sum over i j of R_ai C_bj x_ij

    R and C hold one over a cell's length where a row or column is in the cell, which goes from
    floor(a h / n) to ceil((a + 1) h / n).
    """

    def __init__(self, cells: int):
        super().__init__()
        self.cells = cells

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C n n"]:
        rows, columns = (self._shares(x.shape[axis], x) for axis in (2, 3))
        return rows @ x @ columns.mT

    def _shares(self, length: int, like: Tensor) -> Float[Tensor, "n length"]:
        first = torch.arange(self.cells, device=like.device)[:, None]
        at = torch.arange(length, device=like.device)
        start = first * length // self.cells
        end = ((first + 1) * length + self.cells - 1) // self.cells
        inside = ((at >= start) & (at < end)).to(like.dtype)
        return inside / inside.sum(1, keepdim=True)


class UperNetSegmenter(DenseNetwork):
    """transformers' UperNet heads over the maps of a backbone.

    dim        channels of the pyramid
    cells      sides of the grids over which context is pooled
    auxiliary  channels of the further head in training; none if 0
    """

    kind = "upernet"
    body = "backbone.body."

    def __init__(
        self,
        backbone: Features,
        classes: int,
        *,
        dim: int = 512,
        cells: Sequence[int] = (1, 2, 3, 6),
        auxiliary: int = 256,
    ):
        super().__init__()
        transformers()
        from transformers import UperNetConfig
        from transformers.models.upernet import modeling_upernet as theirs

        self.backbone = backbone
        self.stages = [i for i, stride in enumerate(backbone.strides) if stride >= STRIDE]
        backbone.only(self.stages)
        widths = [backbone.widths[i] for i in self.stages]
        make: Any = UperNetConfig
        config = make(
            hidden_size=dim, pool_scales=list(cells), num_labels=classes,
            use_auxiliary_head=bool(auxiliary), auxiliary_channels=auxiliary or 1,
        )  # fmt: skip
        self.head = theirs.UperNetHead(config, widths)
        for block, side in zip(self.head.psp_modules.blocks, cells, strict=True):
            means: Any = CellMeans(side)
            block.layers[0] = means
            block.add_module("0", means)
        self.auxiliary = None
        if auxiliary:
            at = max(len(widths) - 2, 0)
            self.auxiliary = theirs.UperNetFCNHead(config, widths, in_index=at)
        self.num_classes = classes

    def forward(
        self, image: Float[Tensor, "B C H W"], coarse: bool = False
    ) -> Float[Tensor, "B K h w"]:
        """Logits of every pixel; of every fourth each way, before the last x4, if `coarse`."""
        size: Sequence[int] = image.shape[2:]
        logits = at_stride(self.head(self._maps(image)), size)
        return logits if coarse else raised(logits, STRIDE, size)

    def with_auxiliary(
        self, image: Float[Tensor, "B C H W"]
    ) -> tuple[Float[Tensor, "B K h w"], Float[Tensor, "B K h w"] | None]:
        """Logits of every fourth pixel each way, of both heads."""
        maps, size = self._maps(image), image.shape[2:]
        further = None if self.auxiliary is None else at_stride(self.auxiliary(maps), size)
        return at_stride(self.head(maps), size), further

    def _maps(self, image: Tensor) -> list[Tensor]:
        maps = self.backbone(image)
        return [maps[i] for i in self.stages]

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier, a detector or a segmenter alike."""
        self.backbone.start_from(source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone, enable)


def at_stride(logits: Float[Tensor, "B K h w"], size: Sequence[int]) -> Float[Tensor, "B K H W"]:
    """Logits at a quarter of an image's height and width, rounded up."""
    H, W = ((side + STRIDE - 1) // STRIDE for side in size)
    if not torch.compiler.is_exporting() and tuple(logits.shape[2:]) == (H, W):
        return logits
    return F.interpolate(logits, size=(H, W), mode="bilinear", align_corners=False)


# What `build` takes of a recipe's task; the rest of that is the loss's and the prediction's.
WORDS = ("dim", "cells", "auxiliary")


def build(name: str, classes: int, settings: Any = None, **words: Any) -> UperNetSegmenter:
    """UperNet on the backbone called `name`, of saccade or timm.

    The arguments of `UperNetSegmenter` come by `settings` (a recipe's task, or a dict) or by name;
    further words are the backbone's.
    """
    own, options = split_arguments(WORDS, settings, words)
    if "cells" in own:
        own["cells"] = list(own["cells"])
    backbone = features.build(name, **options)
    net = UperNetSegmenter(backbone, classes, **own)
    net.default_cfg = backbone.timm_config
    net.arguments = {"name": name, "classes": classes, "settings": own, **options}
    return net
