"""DETR on any backbone, through transformers: a transformer over the last map, and its queries.

    image -> backbone -> last map -> 1 x 1 projection -> encoder, decoder -> class logits and boxes

`net.detr` is transformers' own DetrForObjectDetection with all it can do. Two things are ours:

- Padding changes nothing. A batch is padded to its largest image; each image goes through the
  backbone at its own size (those of one size together), and only the maps are padded, and masked.
- New weights are drawn as DETR's authors do: Xavier in the transformer, queries from N(0, 1).

With `carry="raw"`, a third: each layer of the decoder hands its own state to the next, and the norm
stands before the answers alone. transformers hands on the normed state wherever auxiliary losses
are on, so that its last answer is normed twice.

As there, BatchNorm in a backbone is frozen, so such a one should start from trained weights.
"""

from typing import Any

import timm
import torch
from jaxtyping import Bool, Float
from timm.utils.model import freeze_batch_norm_2d
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.models import features
from saccade.models.detector import DenseNetwork, split_arguments


class OwnSize(nn.Module):
    """In the place of transformers' DetrConvEncoder: every image encoded at its own size."""

    def __init__(self, encoder: Any, model: Any):
        super().__init__()
        self.config = encoder.config
        self.model = model
        self.intermediate_channel_sizes = model.feature_info.channels()

    def forward(
        self, pixel_values: Float[Tensor, "B C H W"], pixel_mask: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """The last map B D h w, and where it is an image, B h w."""
        if torch.compiler.is_exporting():  # a graph has no padding: it cannot sort images by size
            x = self._last(pixel_values)
            return [(x, torch.ones_like(x[:, 0], dtype=torch.bool))]
        whole = tuple(pixel_values.shape[2:])
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, size in enumerate(_sizes(pixel_mask)):
            groups.setdefault(size, []).append(i)
        if list(groups) == [whole]:
            x = self._last(pixel_values)
            return [(x, torch.ones_like(x[:, 0], dtype=torch.bool))]
        maps = {
            size: self._last(pixel_values[at, :, : size[0], : size[1]])
            for size, at in groups.items()
        }
        h, w = (max(x.shape[axis] for x in maps.values()) for axis in (2, 3))
        order = torch.tensor([i for at in groups.values() for i in at], device=pixel_mask.device)
        padded = torch.cat([_padded(x, h, w) for x in maps.values()])
        mask = torch.cat([_padded(torch.ones_like(x[:, :1]), h, w) for x in maps.values()])
        back = order.argsort()
        return [(padded[back], mask[back, 0] > 0)]

    def _last(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return features.planes(self.model, self.model(image))[-1]


def _padded(x: Float[Tensor, "B C H W"], h: int, w: int) -> Float[Tensor, "B C h w"]:
    return F.pad(x, (0, w - x.shape[3], 0, h - x.shape[2]))


def _sizes(mask: Tensor) -> list[tuple[int, ...]]:
    """Heights and widths of the images in a batch, by a mask that is 1 on them."""
    rows, columns = mask[:, :, 0].sum(1), mask[:, 0].sum(1)
    return [(int(h), int(w)) for h, w in torch.stack((rows, columns), 1).tolist()]


class DetrDetector(DenseNetwork):
    """transformers' DETR over a backbone that reads every image at its own size."""

    kind = "detr"
    body = "detr.model.backbone.model.model.backbone."

    def __init__(self, detr: Any, architecture: str, auxiliary: bool = True):
        super().__init__()
        self.auxiliary = auxiliary
        self.detr: Any = detr
        self.architecture = architecture
        self.num_classes = detr.config.num_labels

    @property
    def backbone(self) -> OwnSize:
        return self.detr.model.backbone

    def forward(
        self, image: Float[Tensor, "B C H W"], size: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Logits B queries (classes + 1, the last: nothing) and boxes B queries 4.

        Boxes are x y of the centre, width and height, as shares of the image's own `size`. With
        auxiliary losses, `aux_logits` and `aux_boxes` are those of the earlier layers, layer first.
        """
        mask = None if size is None else masked(image, size)
        raw = self.auxiliary and not self.detr.config.auxiliary_loss
        raw = raw and not torch.compiler.is_exporting()  # a graph has no use for earlier layers
        options = {"output_hidden_states": True} if raw else {}
        decoded = self.detr.model(pixel_values=image, pixel_mask=mask, **options)
        output = self._answer(decoded.last_hidden_state)
        early = decoded.intermediate_hidden_states
        if raw:
            early = self.detr.model.decoder.layernorm(
                torch.stack(decoded.decoder_hidden_states[1:])
            )
        if early is not None:
            answers = self._answer(early[:-1])
            output |= {f"aux_{key}": value for key, value in answers.items()}
        return output

    def _answer(self, hidden: Tensor) -> dict[str, Tensor]:
        boxes = self.detr.bbox_predictor(hidden).sigmoid()
        return {"logits": self.detr.class_labels_classifier(hidden), "boxes": boxes}

    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier or a detector of the same architecture."""
        features.copy_body(self.backbone.model, self.architecture, source)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""
        features.recompute(self.backbone.model, enable)


def masked(image: Float[Tensor, "B C H W"], size: Tensor) -> Bool[Tensor, "B H W"]:
    """transformers' pixel mask: true where a padded batch holds an image."""
    H, W = image.shape[2:]
    size = size.to(image.device)
    rows = torch.arange(H, device=image.device) < size[:, :1]
    columns = torch.arange(W, device=image.device) < size[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


# What `build` takes of a recipe's task; the rest of that is the prediction's.
WORDS = (
    "queries", "dim", "encoder", "decoder", "heads", "hidden", "dropout", "attention_dropout",
    "carry", "auxiliary", "nothing",
)  # fmt: skip


def build(name: str, classes: int, settings: Any = None, **words: Any) -> DetrDetector:
    """DETR on the backbone called `name`, of saccade or timm.

    The arguments of `configured` come by `settings` (a recipe's task, or a dict) or by name;
    further words are the backbone's (`drop_path`, `in_chans`, `window`, ...). Without those it is
    also what transformers' `from_pretrained` makes of a folder that `net.detr.save_pretrained`
    wrote.
    """
    own, options = split_arguments(WORDS, settings, words)
    features.check(name)
    config = configured(name, classes, in_chans=options.get("in_chans", 3), **own)
    backbone_options: dict[str, Any] = dict(options)
    if "drop_path" in backbone_options:
        backbone_options["drop_path_rate"] = backbone_options.pop("drop_path")
    body: Any = timm.create_model(name, features_only=True, out_indices=(-1,), **backbone_options)
    width = body.feature_info.channels()[-1]
    detr: Any = transformers().DetrForObjectDetection(config)
    detr.model.backbone = OwnSize(detr.model.backbone, freeze_batch_norm_2d(body))
    if width != detr.model.input_projection.in_channels:
        detr.model.input_projection = nn.Conv2d(width, config.d_model, 1)
    draw(detr)
    net = DetrDetector(detr, name, own.get("auxiliary", True))
    net.default_cfg = dict(body.default_cfg)
    net.arguments = {"name": name, "classes": classes, "settings": own, **options}
    return net


def configured(
    name: str,
    classes: int,
    *,
    queries: int = 100,
    dim: int = 256,
    encoder: int = 6,
    decoder: int = 6,
    heads: int = 8,
    hidden: int = 2048,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    carry: str = "normed",
    auxiliary: bool = True,
    nothing: float = 0.1,
    in_chans: int = 3,
) -> Any:
    """transformers' DetrConfig in our words; nothing is downloaded for it."""
    check_width("DetrDetector", dim, heads)
    house = transformers()
    backbone = house.TimmBackboneConfig(
        backbone=name, use_pretrained_backbone=False, num_channels=in_chans
    )
    return house.DetrConfig(
        backbone_config=backbone, num_channels=in_chans, num_labels=classes, num_queries=queries,
        d_model=dim, encoder_layers=encoder, decoder_layers=decoder, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=hidden, decoder_ffn_dim=hidden,
        dropout=float(dropout), attention_dropout=float(attention_dropout),
        auxiliary_loss=auxiliary and carry == "normed", eos_coefficient=float(nothing),
    )  # fmt: skip


def draw(detr: Any) -> None:
    """New weights as DETR's authors draw them, which transformers leaves at N(0, 0.02)."""
    model = detr.model
    for p in (*model.encoder.parameters(), *model.decoder.parameters()):
        if p.ndim > 1:
            nn.init.xavier_uniform_(p)
    nn.init.normal_(model.query_position_embeddings.weight)
    for layer in (
        model.input_projection,
        detr.class_labels_classifier,
        *detr.bbox_predictor.layers,
    ):
        layer.reset_parameters()


def check_width(where: str, dim: int, heads: int) -> None:
    """Refuse a transformer's width that its heads, or the positions of both axes, do not divide."""
    if dim % heads or dim % 4:
        raise ValueError(
            f"{where}: heads must divide dim, and 4 as well (sine and cosine of x and y), "
            f"got {dim=} {heads=}"
        )


def transformers() -> Any:
    """The package, asked for only here: it is large."""
    try:
        import scipy  # noqa: F401  (transformers matches boxes with it)
        import transformers
    except ImportError as error:
        raise ImportError(
            f"DETR needs transformers and scipy ({error}): pip install 'saccade[detection]'"
        ) from error
    return transformers
