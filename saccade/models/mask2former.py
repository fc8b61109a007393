"""Mask2Former on any backbone, through transformers: queries, each with a class and a mask.

    image -> backbone -> last three maps -> deformable encoder; with the map of stride 4: pixels E
    query q -> decoder, which looks where its last mask is -> class p_q and mask m_q = q . E
    score of class k at a pixel = sum over queries of p_q(k) sigmoid(m_q)

`forward` gives log scores, so that what is made of other segmenters' logits can be made of them.
`net.parts` are transformers' own modules, drawn as its authors draw them. What is ours: any
backbone with maps of stride 4 and coarser, three or more, each half as fine as the one before.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.semantic import STRIDE, raised
from saccade.models import features
from saccade.models.detector import DenseNetwork, split_arguments
from saccade.models.detr import transformers
from saccade.models.features import Features
from saccade.models.upernet import at_stride

LEAST_LEVELS = 3  # the encoder reads the last three
GROUPS = 32  # of the encoder's norms
TINY = 1e-6  # a score's least


class Parts(nn.Module):
    """transformers' pixel decoder, its transformer, and the classifier of queries."""

    def __init__(self, config: Any, widths: Sequence[int]):
        super().__init__()
        from transformers.models.mask2former import modeling_mask2former as theirs

        self.pixels = theirs.Mask2FormerPixelDecoder(config, list(widths))
        self.transformer = theirs.Mask2FormerTransformerModule(config.feature_size, config)
        self.classify = nn.Linear(config.hidden_dim, config.num_labels + 1)

    def reset_parameters(self, config: Any) -> None:
        """Draw new weights as transformers does for the whole model."""
        from transformers.models.mask2former import modeling_mask2former as theirs

        class Drawing(theirs.Mask2FormerPreTrainedModel):
            pass

        by = Drawing(config)
        for module in list(self.modules())[::-1]:  # the outer ones may overrule the inner
            if isinstance(module, nn.Linear | nn.Conv2d | nn.GroupNorm | nn.LayerNorm):
                module.reset_parameters()
        own = (
            theirs.Mask2FormerTransformerModule, theirs.Mask2FormerMaskedAttentionDecoderLayer,
            theirs.Mask2FormerPixelDecoder, theirs.Mask2FormerPredictionBlock, nn.Embedding,
            theirs.Mask2FormerPixelDecoderEncoderMultiscaleDeformableAttention,
        )  # fmt: skip
        for module in list(self.modules())[::-1]:
            if isinstance(module, own):
                by._init_weights(module)


class Mask2FormerSegmenter(DenseNetwork):
    """transformers' Mask2Former over the maps of a backbone."""

    kind = "mask2former"
    body = "backbone.body."

    def __init__(self, backbone: Features, config: Any, stages: Sequence[int]):
        super().__init__()
        self.backbone, self.stages = backbone, list(stages)
        self.parts = Parts(config, [backbone.widths[i] for i in stages])
        self.parts.reset_parameters(config)
        self.num_classes = config.num_labels
        self.__dict__["config"] = config

    def forward(
        self, image: Float[Tensor, "B C H W"], coarse: bool = False
    ) -> Float[Tensor, "B K h w"]:
        """Log scores of every pixel; of every fourth each way if `coarse`."""
        size: Sequence[int] = image.shape[2:]
        layers = self.queries(image)
        classes = layers["classes"][-1].float().softmax(2)[..., :-1]
        masks = at_stride(layers["masks"][-1].float().sigmoid(), size)
        scores = torch.einsum("bqk,bqhw->bkhw", classes, masks).clamp(min=TINY).log()
        return scores if coarse else raised(scores, STRIDE, size)

    def queries(self, image: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        """Of each layer of the decoder, and before the first: `classes` and `masks`, logits.

        Returns:
            tensors, layer first: l B queries (classes + 1, the last: nothing), and l B queries h w
        """
        maps = self.backbone(image)
        decoded = self.parts.pixels([maps[i] for i in self.stages])
        answers = self.parts.transformer(decoded.multi_scale_features, decoded.mask_features)
        hidden = torch.stack(answers.intermediate_hidden_states).transpose(1, 2)
        return {
            "classes": self.parts.classify(hidden),
            "masks": torch.stack(answers.masks_queries_logits),
        }

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier, a detector or a segmenter alike."""
        self.backbone.start_from(source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone, enable)


# What `build` takes of a recipe's task; the rest of that is the loss's and the prediction's.
WORDS = ("dim", "queries", "encoder", "decoder", "heads", "hidden")


def build(name: str, classes: int, settings: Any = None, **words: Any) -> Mask2FormerSegmenter:
    """Mask2Former on the backbone called `name`, of saccade or timm.

    The arguments of `configured` come by `settings` (a recipe's task, or a dict) or by name;
    further words are the backbone's.
    """
    own, options = split_arguments(WORDS, settings, words)
    backbone = features.build(name, **options)
    stages = [i for i, stride in enumerate(backbone.strides) if stride >= STRIDE]
    strides = [backbone.strides[i] for i in stages]
    halved = all(b == 2 * a for a, b in pairwise(strides))
    if len(stages) < LEAST_LEVELS or strides[0] != STRIDE or not halved:
        raise ValueError(
            f"Mask2FormerSegmenter: the backbone gives three maps or more at strides 4, 8, 16, "
            f"..., got strides={backbone.strides}; try another model.name"
        )
    backbone.only(stages)
    net = Mask2FormerSegmenter(backbone, configured(classes, strides, **own), stages)
    net.default_cfg = backbone.timm_config
    net.arguments = {"name": name, "classes": classes, "settings": own, **options}
    return net


def configured(
    classes: int,
    strides: Sequence[int],
    *,
    dim: int = 256,
    queries: int = 100,
    encoder: int = 6,
    decoder: int = 9,
    heads: int = 8,
    hidden: int = 2048,
) -> Any:
    """transformers' Mask2FormerConfig in our words; nothing is downloaded for it."""
    if dim % GROUPS or dim % heads:
        raise ValueError(
            f"Mask2FormerSegmenter: {GROUPS} and heads must divide dim, got {dim=} {heads=}"
        )
    return transformers().Mask2FormerConfig(
        num_labels=classes, feature_size=dim, mask_feature_size=dim, hidden_dim=dim,
        num_queries=queries, encoder_layers=encoder, decoder_layers=decoder + 1,
        num_attention_heads=heads, dim_feedforward=hidden, encoder_feedforward_dim=hidden // 2,
        feature_strides=list(strides), dropout=0.0,
    )  # fmt: skip
