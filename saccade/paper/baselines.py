"""The other networks in LinGlo's tables: rows as claims, counted where a package has the network.

In Table 2, networks are counted whole. Under RetinaNet and SemanticFPN the parameters of pyramid
and heads, which follow from the maps' widths, are added to the backbone's, which are counted as the
printed cells show them to be:

    PVT, Swin   without the classifier; Swin with a norm for each map
    Twins       with ImageNet's classifier, unused: with it the cells are as printed
    ResNet      without the classifier; under RetinaNet without stem and first stage, which
                mmdetection freezes: what is trained is counted

timm brings most networks; PVT comes with transformers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import timm
import torch
from torch import nn

from saccade.layers.pyramid import DenseHead, FeaturePyramid
from saccade.layers.semantic import SemanticBranch
from saccade.models.linglo_retinanet import precisions
from saccade.paper import Claim

COCO, ADE20K, ANCHORS = 80, 150, 9
STRIDES = (4, 8, 16, 32)


class Counts(NamedTuple):
    """Parameters of a network whole and without its classifier, and the widths of its maps."""

    whole: int
    backbone: int
    widths: tuple[int, ...]
    frozen: int = 0
    """Parameters that are not trained under RetinaNet."""


def _of_timm(name: str) -> Counts:
    with torch.device("meta"):
        model: Any = timm.create_model(name)
        if name in NO_MAPS:
            return Counts(_count(model), _count(model), ())
        head = model.get_classifier()
        widths = tuple(info["num_chs"] for info in model.feature_info)[-4:]
    return Counts(_count(model), _count(model) - _count(head), widths)


def _of_swin(name: str) -> Counts:
    """As detectors take it: the last norm gives way to one on each map."""
    counts = _of_timm(name)
    norms = 2 * sum(counts.widths[:-1])
    return counts._replace(backbone=counts.backbone + norms)


def _of_twins(name: str) -> Counts:
    counts = _of_timm(name)
    return counts._replace(backbone=counts.whole)


def _of_resnet(name: str) -> Counts:
    with torch.device("meta"):
        model: Any = timm.create_model(name)
    frozen = sum(_count(part) for part in (model.conv1, model.bn1, model.layer1))
    return _of_timm(name)._replace(frozen=frozen)


def _of_transformers(depths: tuple[int, ...]) -> Counts:
    import transformers

    with torch.device("meta"):
        config = transformers.PvtConfig(depths=list(depths), num_labels=1000)
        model: Any = transformers.PvtForImageClassification(config)
    return Counts(_count(model), _count(model.pvt), tuple(config.hidden_sizes))


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _retinanet(widths: tuple[int, ...]) -> int:
    with torch.device("meta"):
        pyramid = FeaturePyramid(widths[-3:], coarse="C5", init="xavier")
        heads = [DenseHead(ANCHORS * out, norm=False, init="xavier") for out in (COCO, 4)]
    return _count(pyramid) + sum(map(_count, heads))


def _semantic_fpn(widths: tuple[int, ...]) -> int:
    with torch.device("meta"):
        return _count(SemanticBranch(widths, STRIDES, ADE20K))


NO_MAPS = ("deit_tiny_patch16_224", "deit_small_patch16_224", "tnt_s_patch16_224")
NETWORKS: dict[str, Callable[[], Counts]] = {
    "pvt_tiny": lambda: _of_transformers((2, 2, 2, 2)),
    "pvt_small": lambda: _of_transformers((3, 4, 6, 3)),
    "swin_tiny": lambda: _of_swin("swin_tiny_patch4_window7_224"),
    "twins_pcpvt_small": lambda: _of_twins("twins_pcpvt_small"),
    "twins_svt_small": lambda: _of_twins("twins_svt_small"),
    "resnet18": lambda: _of_resnet("resnet18"),
    "resnet50": lambda: _of_resnet("resnet50"),
    "deit_tiny": lambda: _of_timm("deit_tiny_patch16_224"),
    "deit_small": lambda: _of_timm("deit_small_patch16_224"),
    "tnt_small": lambda: _of_timm("tnt_s_patch16_224"),
    "coatnet_0": lambda: _of_timm("coatnet_0_224"),
    "convnext_tiny": lambda: _of_timm("convnext_tiny"),
}

ABSENT = "neither timm nor transformers has this network, so nothing here counts it"
_SWIN = (
    "28.3M in timm and in torchvision, whose networks were counted (its authors' code was not); "
    "29.0M reads like a rough 29M to which a 0 was added"
)
_TWINS = (
    "24.06M in timm, whose network was counted (its authors' code was not); 24.0M reads like a "
    "rough 24M to which a 0 was added"
)
_RESNET18 = "15.43M; a deep stem, which some such networks have, makes it 15.446M, still 15.4M"

# Name, parameters in M, top-1.
_TABLE_2 = (
    ("deit_tiny", "5.7", "72.2", ""),
    ("resnet18", "11.7", "69.8", ""),
    ("lambdanet_50", "15.0", "78.4", ""),
    ("pvt_tiny", "13.2", "75.1", ""),
    ("resnet50", "25.6", "79.8", ""),
    ("deit_small", "22.1", "79.9", ""),
    ("tnt_small", "23.8", "81.3", ""),
    ("swin_tiny", "29.0", "81.3", _SWIN),
    ("twins_svt_small", "24.0", "81.3", _TWINS),
    ("focal_tiny", "29.1", "82.2", ""),
    ("coatnet_0", "25", "81.6", ""),
    ("convnext_tiny", "29", "82.1", ""),
)
# Name, parameters in M, and the six average precisions.
_TABLE_3 = (
    ("resnet18", "21.3", ("31.8", "49.6", "33.6", "16.3", "34.3", "43.2")),
    ("pvt_tiny", "23.0", ("36.7", "56.9", "38.9", "22.6", "38.8", "50.0")),
    ("resnet50", "37.7", ("36.3", "55.3", "38.6", "19.3", "40.0", "48.8")),
    ("pvt_small", "34.2", ("40.4", "61.3", "43.0", "25.0", "42.9", "55.7")),
    ("twins_pcpvt_small", "34.4", ("43.0", "64.1", "46.0", "27.5", "46.3", "57.3")),
    ("twins_svt_small", "34.3", ("42.3", "63.4", "45.2", "26.0", "45.5", "56.5")),
    ("swin_tiny", "38.5", ("41.5", "62.1", "44.2", "25.1", "44.9", "55.5")),
)
_TABLE_4 = (
    ("resnet18", "15.5", "32.9", _RESNET18),
    ("pvt_tiny", "17.0", "35.7", ""),
    ("resnet50", "28.5", "36.7", ""),
    ("pvt_small", "28.2", "39.8", ""),
    ("twins_pcpvt_small", "28.4", "44.3", ""),
    ("twins_svt_small", "28.3", "42.6", ""),
    ("swin_tiny", "31.9", "41.5", ""),
)


CLAIMS: dict[str, tuple[Claim, ...]] = {
    **{
        name: (
            Claim("Table 2", "params", f"{params}M", differs=differs,
                  unmeasured="" if name in NETWORKS else ABSENT),
            Claim("Table 2", "top-1", f"{top1}%"),
        )
        for name, params, top1, differs in _TABLE_2
    },
    **{
        f"{name}_retinanet": (Claim("Table 3", "params", f"{params}M"), *precisions(*printed))
        for name, params, printed in _TABLE_3
    },
    **{
        f"{name}_semantic_fpn": (
            Claim("Table 4", "params", f"{params}M", differs=differs),
            Claim("Table 4", "mIoU", miou),
        )
        for name, params, miou, differs in _TABLE_4
    },
}  # fmt: skip


def measure(name: str, claim: Claim) -> int | None:
    """The parameters of a row; None for what only a training run gives."""
    for end, extra in (("_retinanet", _retinanet), ("_semantic_fpn", _semantic_fpn)):
        if claim.what == "params" and name.endswith(end):
            counts = NETWORKS[name.removesuffix(end)]()
            frozen = counts.frozen if end == "_retinanet" else 0
            return counts.backbone - frozen + extra(counts.widths)
    if claim.what != "params" or name not in NETWORKS:
        return None
    return NETWORKS[name]().whole
