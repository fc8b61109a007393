"""RT-DETR on any backbone, through transformers: a DETR that learns from a few hundred images.

    image -> backbone -> its last maps -> hybrid encoder -> the likeliest places become queries
          -> decoder: each layer looks at a few points around its boxes and corrects them

DETR's queries must learn from scratch where boxes lie; these begin at places where a head over the
encoder's maps predicts objects. In training, shifted copies of each true box ("shaken" in names
here) are queries too, which the decoder must correct (denoising). `net.detr` is transformers'
`RTDetrForObjectDetection`. What is ours:

- Any backbone and any image: one whose sides are no multiples of the coarsest stride is filled up
  with zeros to the next. Boxes are shares of the image so filled.
- BatchNorm above the backbone begins at 1 and convolutions as torch draws them, as RT-DETR's
  authors do. transformers draws weights of BatchNorm from N(0, 0.01): right for a checkpoint that
  replaces them, but from there nothing of the image reaches the decoder.
- BatchNorm inside the backbone learns (`frozen=False`); theirs is fixed at ImageNet's statistics.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from timm.utils.model import freeze_batch_norm_2d
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.models import features
from saccade.models.detector import DenseNetwork, Maps, split_arguments
from saccade.models.detr import check_width, transformers

PRIOR = 0.01  # every score at the start: so low that the background does not dominate the loss


class LastMaps(nn.Module):
    """In the place of transformers' RTDetrConvEncoder: the last maps of a backbone of ours."""

    def __init__(self, model: nn.Module, levels: int):
        super().__init__()
        self.model, self.levels = model, levels
        maps = cast(Maps, model)
        self.intermediate_channel_sizes = list(maps.widths[-levels:])

    def forward(
        self, pixel_values: Float[Tensor, "B C H W"], pixel_mask: Tensor | None
    ) -> list[tuple[Tensor, None]]:
        """Maps, finest first, each with the place of a mask, which RT-DETR does not read."""
        return [(x, None) for x in self.model(pixel_values)[-self.levels :]]


class Sinusoids(nn.Module):
    """In the place of transformers' own, whose table a graph would keep for one size of image."""

    def __init__(self, dim: int, temperature: float):
        super().__init__()
        self.rates = [temperature ** (-4 * i / dim) for i in range(dim // 4)]

    def forward(
        self, width: int, height: int, device: torch.device | str, dtype: torch.dtype
    ) -> Float[Tensor, "1 N D"]:
        """Sine and cosine of the row, then of the column, row by row."""
        rates = torch.tensor(self.rates, device=device)
        y, x = (torch.arange(n, device=device)[:, None] * rates for n in (height, width))
        rows = torch.cat((y.sin(), y.cos()), 1)[:, None].expand(-1, x.shape[0], -1)
        columns = torch.cat((x.sin(), x.cos()), 1)[None].expand(y.shape[0], -1, -1)
        return torch.cat((rows, columns), 2).flatten(0, 1)[None].to(dtype)


class RTDetrDetector(DenseNetwork):
    """transformers' RT-DETR over the last maps of a backbone."""

    kind = "rtdetr"
    body = "detr.model.backbone.model.body."

    def __init__(self, detr: Any, stride: int):
        super().__init__()
        self.detr: Any = detr
        self.stride = stride
        self.num_classes = detr.config.num_labels

    @property
    def backbone(self) -> nn.Module:
        return self.detr.model.backbone.model

    def forward(
        self, image: Float[Tensor, "B C H W"], labels: list[dict[str, Tensor]] | None = None
    ) -> dict[str, Any]:
        """Logits B queries classes and boxes B queries 4, as shares of the image filled up.

        Beside them `aux_logits`, `aux_boxes`, those of earlier layers, layer first, the last of
        which are the encoder's; and if labels (class_labels, boxes) are given in training,
        `shaken_logits`, `shaken_boxes` of all layers and `shaken`, which box each is of.
        """
        x = self.filled(image)
        maps = self._encoded(x)
        sizes = [(level.shape[2], level.shape[3]) for level in maps]
        pixels = torch.cat([level.flatten(2).mT for level in maps], 1)  # B n dim
        queries, boxes, places = self._choose_queries(pixels, sizes)
        shaken = self._shaken(labels, queries.shape[1])
        if shaken is not None:
            queries, boxes = (
                torch.cat(pair, 1) for pair in zip(shaken[:2], (queries, boxes), strict=True)
            )
        sides = torch.tensor(sizes, device=x.device)
        starts = torch.cat((sides.new_zeros(1), sides.prod(1).cumsum(0)[:-1]))
        decoded = self.detr.model.decoder(
            inputs_embeds=queries, encoder_hidden_states=pixels, reference_points=boxes.detach(),
            encoder_attention_mask=None if shaken is None else shaken[2], spatial_shapes=sides,
            spatial_shapes_list=sizes, level_start_index=starts,
        )  # fmt: skip
        layers = {
            "logits": decoded.intermediate_logits.transpose(0, 1),
            "boxes": decoded.intermediate_reference_points.transpose(0, 1),
        }  # layer first
        output: dict[str, Any] = {}
        if shaken is not None:
            output["shaken"] = shaken[3]
            parts = {name: x.split(shaken[3]["dn_num_split"], 2) for name, x in layers.items()}
            output |= {f"shaken_{name}": first for name, (first, _) in parts.items()}
            layers = {name: rest for name, (_, rest) in parts.items()}
        for name, values in layers.items():
            output[name] = values[-1]
            output[f"aux_{name}"] = torch.cat((values[:-1], places[name][None]))
        return output

    # The steps of `RTDetrModel.forward`, which takes the batch for a constant where it is exported.

    def _encoded(self, image: Float[Tensor, "B C H W"]) -> list[Tensor]:
        """The hybrid encoder's maps, finest first, as the decoder reads them."""
        model = self.detr.model
        maps = [x for x, _ in model.backbone(image, None)]
        inward = [project(x) for project, x in zip(model.encoder_input_proj, maps, strict=True)]
        outward = model.encoder(inward).last_hidden_state
        return [project(x) for project, x in zip(model.decoder_input_proj, outward, strict=True)]

    def _choose_queries(
        self, pixels: Float[Tensor, "B n D"], sizes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Queries, where their boxes begin (before a sigmoid), and what the encoder says there."""
        model = self.detr.model
        anchors, valid = model.generate_anchors(tuple(sizes), device=pixels.device)
        memory = model.enc_output(valid * pixels)
        scores, boxes = model.enc_score_head(memory), model.enc_bbox_head(memory) + anchors
        best = scores.amax(2).topk(self._count(pixels), dim=1).indices
        best = best.sort(1).values[..., None]  # a set; by place, as rounding changes their ranks
        queries, logits, at = (
            x.gather(1, best.expand(-1, -1, x.shape[2])) for x in (memory, scores, boxes)
        )
        return queries.detach(), at, {"logits": logits, "boxes": at.sigmoid()}

    def _count(self, pixels: Float[Tensor, "B n D"]) -> int:
        """Of queries: fewer where an image has fewer places; a graph has always as many."""
        queries = self.detr.config.num_queries
        return queries if torch.compiler.is_exporting() else min(queries, pixels.shape[1])

    def _shaken(
        self, labels: list[dict[str, Tensor]] | None, queries: int
    ) -> tuple[Any, ...] | None:
        """Queries, boxes, who sees whom, and which box each is of; None without any true box."""
        model, config = self.detr.model, self.detr.config
        if labels is None or not config.num_denoising:
            return None
        from transformers.models.rt_detr import modeling_rt_detr

        shaken = modeling_rt_detr.get_contrastive_denoising_training_group(
            labels, config.num_labels, queries, model.denoising_class_embed,
            config.num_denoising, config.label_noise_ratio, config.box_noise_scale,
        )  # fmt: skip
        return None if shaken[0] is None else shaken

    def filled(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
        """With sides that every map divides, as the encoder wants them."""
        height, width = self.whole(image.shape[2], image.shape[3])
        return F.pad(image, (0, width - image.shape[3], 0, height - image.shape[2]))

    def whole(self, height: int, width: int) -> tuple[int, int]:
        """The sides of an image once it is filled up."""
        step = self.stride  # no -(-height // step): ONNX rounds a division towards zero
        return (height + step - 1) // step * step, (width + step - 1) // step * step

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier or a detector of the same architecture."""
        cast(features.Features, self.backbone).start_from(source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone, enable)


# What `build` takes of a recipe's task; the rest of that is the loss's and the prediction's.
WORDS = (
    "queries", "dim", "decoder", "heads", "hidden", "points", "levels", "expand", "denoising",
    "label_noise", "box_noise", "frozen",
)  # fmt: skip


def build(name: str, classes: int, settings: Any = None, **words: Any) -> RTDetrDetector:
    """RT-DETR on the backbone called `name`, of saccade or timm.

    The arguments of `configured` come by `settings` (a recipe's task, or a dict) or by name, with
    `levels` and `frozen`; further words are the backbone's (`drop_path`, `in_chans`, ...).
    """
    own, options = split_arguments(WORDS, settings, words)
    how = dict(own)
    levels, frozen = how.pop("levels", 3), how.pop("frozen", False)
    backbone = features.build(name, **options)
    count = len(backbone.strides)
    strides = backbone.strides[-levels:] if levels > 0 else ()
    if not 1 <= levels <= count or any(b != 2 * a for a, b in pairwise(strides)):
        raise ValueError(
            f"RTDetrDetector: levels are the last maps of the backbone, each half as fine as the "
            f"one before, got {levels=} strides={backbone.strides}; try levels=1"
        )
    backbone.only(range(count - levels, count))
    body = transformers().TimmBackboneConfig(
        backbone=name, use_pretrained_backbone=False, num_channels=options.get("in_chans", 3),
        out_indices=list(range(count - levels, count)),
    )  # fmt: skip
    config = configured(body, classes, backbone.widths[-levels:], strides, **how)
    detr: Any = transformers().RTDetrForObjectDetection(config)
    detr.model.backbone = LastMaps(freeze_batch_norm_2d(backbone) if frozen else backbone, levels)
    for layer in detr.model.encoder.aifi:
        layer.position_embedding = Sinusoids(config.d_model, config.positional_encoding_temperature)
    draw(detr)
    net = RTDetrDetector(detr, strides[-1])
    net.default_cfg = backbone.timm_config
    net.arguments = {"name": name, "classes": classes, "settings": own, **options}
    return net


def configured(
    backbone: Any,
    classes: int,
    widths: Sequence[int],
    strides: Sequence[int],
    *,
    queries: int = 300,
    dim: int = 256,
    decoder: int = 6,
    heads: int = 8,
    hidden: int = 1024,
    points: int = 4,
    expand: float = 1.0,
    denoising: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> Any:
    """transformers' RTDetrConfig in our words; nothing is downloaded for it."""
    check_width("RTDetrDetector", dim, heads)
    levels = len(widths)
    return transformers().RTDetrConfig(
        backbone_config=backbone, freeze_backbone_batch_norms=False, num_labels=classes,
        num_queries=queries, d_model=dim, encoder_hidden_dim=dim,
        encoder_in_channels=list(widths), feat_strides=list(strides),
        encode_proj_layers=[levels - 1], decoder_in_channels=[dim] * levels,
        num_feature_levels=levels, decoder_layers=decoder, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=hidden, decoder_ffn_dim=hidden,
        decoder_n_points=points, hidden_expansion=float(expand), num_denoising=denoising,
        label_noise_ratio=float(label_noise), box_noise_scale=float(box_noise),
    )  # fmt: skip


@torch.no_grad()
def draw(detr: Any) -> None:
    """New weights as torch draws them, and the particular ones as RT-DETR's authors have them."""
    model = detr.model
    above = [part for name, part in model.named_children() if name != "backbone"]
    layers = [layer for part in above for layer in part.modules()]
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d | nn.LayerNorm):
            layer.reset_parameters()
    for layer in layers:
        if hasattr(layer, "sampling_offsets"):  # points on rays, one for each head
            detr._init_weights(layer)
    nn.init.xavier_uniform_(model.enc_output[0].weight)
    for layer in model.decoder.query_pos_head.layers:
        nn.init.xavier_uniform_(layer.weight)
    for score in (model.enc_score_head, *model.decoder.class_embed):
        nn.init.constant_(score.bias, -math.log((1 - PRIOR) / PRIOR))
    for box in (model.enc_bbox_head, *model.decoder.bbox_embed):
        nn.init.zeros_(box.layers[-1].weight)
        nn.init.zeros_(box.layers[-1].bias)
