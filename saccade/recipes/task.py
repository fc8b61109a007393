"""What a recipe trains for: one of these is its `task`."""

import math
from dataclasses import dataclass
from typing import Literal

from saccade.recipes.bounds import COUNT, SHARE, SOME, hold

Kind = Literal["conv", "attention"]


@dataclass(frozen=True, kw_only=True)
class Classify:
    """Task: one class an image, cross-entropy."""

    smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Distill(Classify):
    """Task: as `Classify`, and agree with a teacher that sees the same augmented image.

    loss = (1 - weight) cross-entropy + weight T^2 KL(teacher / T, student / T)
    """

    teacher: str
    """A timm name, "efficientnet_lite0" (weights by pip), or a saved model."""
    weight: float = 0.7
    temperature: float = 2.0
    size: int | None = None
    """Side the images are resized to for the teacher; as they are if None."""
    classes: str = ""
    """File that maps the set's classes to the teacher's; a head is trained first if empty."""


@dataclass(frozen=True, kw_only=True)
class RetinaNet:
    """Task: boxes, by heads that run over every level of a feature pyramid, and focal loss."""

    fpn: Kind = "conv"
    heads: Kind = "conv"
    coarse: Literal["C5", "P5"] = "C5"
    """What P6 and P7 are made from: the backbone's last map, or the pyramid's."""
    norm: bool = False
    """BatchNorm in the heads, one for each level."""
    dim: int = 256
    """Channels of the pyramid and the heads."""
    depth: int = 4
    """Layers of a head before its last."""
    init: Literal["xavier", "retinanet"] = "xavier"
    """How pyramid and heads are drawn; retinanet: N(0, 0.01) in the heads."""
    scales: int = 3
    """Anchors a place and shape (1:2, 1:1, 2:1), a third of an octave apart for 3."""
    least: float = 4.0
    """Side of the smallest anchor of a level, in strides of that level."""
    alpha: float = 0.25
    """Weight of objects in the focal loss, against 1 - alpha of the background."""
    gamma: float = 2.0
    """How much the focal loss looks away from what is known already."""
    score: float = 0.05
    """Boxes below this are not kept."""
    overlap: float = 0.5
    """Of two boxes of a class that overlap by more, the surer one is kept."""
    most: int = 100
    """Boxes an image."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, depth=COUNT, scales=SOME, alpha=SHARE, gamma=COUNT, score=SHARE)
        hold(self, overlap=SHARE, most=SOME, least=(0.1, math.inf))


@dataclass(frozen=True, kw_only=True)
class Detr:
    """Task: boxes as a set, by a transformer's queries over the last map, matched one to one."""

    queries: int = 100
    dim: int = 256
    encoder: int = 6
    """Layers."""
    decoder: int = 6
    heads: int = 8
    hidden: int = 2048
    """Channels inside the transformer's feed-forward layers."""
    dropout: float = 0.1
    auxiliary: bool = True
    """Hold every layer of the decoder to the boxes, not the last alone."""
    nothing: float = 0.1
    """Weight of queries that find nothing, in the loss of classes."""
    score: float = 0.0
    """Boxes below this are not kept."""

    def __post_init__(self) -> None:
        hold(self, queries=SOME, dim=SOME, dropout=SHARE, nothing=SHARE, score=SHARE)
        hold(self, encoder=COUNT, decoder=SOME, heads=SOME, hidden=SOME)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Task: a class for every pixel, by SemanticFPN, and cross-entropy."""

    dim: int = 256
    """Channels of the pyramid."""
    inner: int = 128
    """Channels of the towers that bring each level to a quarter of the image's size."""
    window: int | None = None
    """Side of the windows through which an evaluated image is looked at; the whole if None."""
    overlap: float = 0.5
    """Share of a window that the next one sees again, at least."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, inner=SOME, window=(64, math.inf), overlap=(0, 0.9))


@dataclass(frozen=True, kw_only=True)
class AutoEncode:
    """Task: the image itself, through a narrow middle, and L1 loss."""

    encoder: Literal["conv", "max", "qna"] = "qna"
    """Five ways down: strided convolution, convolution and maximum, or QnA."""
    decoder: Literal["bilinear", "transpose", "qna"] = "qna"
    """Five ways up: bilinear and convolution, transposed convolution, or QnA."""
    start: Literal["even", "bilinear"] = "even"
    """What QnA's ways up begin as: the mean of a window, or bilinear interpolation."""
    dim: int = 32
    """Channels at full size; twice as many after each way down, up to eight times."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME)
