"""Where attention looks: as arrays (`maps`), and drawn (`sheet`)."""

from saccade.view.maps import (
    LAYERS,
    OUTSIDE,
    WHAT,
    attention_of,
    class_evidence,
    labels_of,
    last_layers,
    last_of_each_stage,
    linglo_saliency,
    maps_of,
    most_different,
    outside_weights,
    qna_attention,
    qna_kernels,
    qna_sum,
    qna_summed_attention,
    qna_tiles,
    sasa_attention,
    sasa_heat,
    stage_of,
    watch,
)  # fmt: skip
from saccade.view.sheet import FULL, LARGE, SMALL, picture, sheet

__all__ = [
    "FULL", "LARGE", "LAYERS", "OUTSIDE", "SMALL", "WHAT", "attention_of", "class_evidence",
    "labels_of", "last_layers", "last_of_each_stage", "linglo_saliency", "maps_of",
    "most_different", "outside_weights", "picture", "qna_attention", "qna_kernels", "qna_sum",
    "qna_summed_attention", "qna_tiles", "sasa_attention", "sasa_heat", "sheet", "stage_of",
    "watch",
]  # fmt: skip
