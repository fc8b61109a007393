"""A backbone by name, as a detector takes it: a variant of saccade, or any model of timm with maps.

    features = build("linglo_b0")            or "resnet50", ...
    maps = features(image)                   finest first, NCHW; `widths`, `strides` beside it

Normalisation of the maps: a family with a single norm at its end (QnA) has no norm after its other
stages, so that the scale of their maps is not bounded. Its last map goes through that norm, with
its trained weights, and every finer map through a new LayerNorm. Families whose stages end in a
norm (LinGlo) or in a normalised activation (SASA) need no more, and timm's maps are taken as
`features_only` gives them.
"""

from collections.abc import Iterable
from typing import Any, cast

import timm
from jaxtyping import Float
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from saccade.layers.branches import fit_norms
from saccade.models import zoo
from saccade.models.backbone import Backbone, Stage
from saccade.models.detector import DenseNetwork
from saccade.spelling import nearest


class Features(nn.Module):
    """A backbone of saccade or of timm, with one interface."""

    def __init__(self, body: nn.Module, timm_config: dict[str, Any]):
        super().__init__()
        self.body = body
        self.timm_config = timm_config
        if isinstance(body, Backbone):
            self.widths, self.strides = body.widths, body.strides
            plain = isinstance(body.norm, nn.Identity)
            self.norms = nn.ModuleList(
                nn.Identity() if plain else LayerNorm2d(width) for width in body.widths[:-1]
            )
        else:
            info = cast(Any, body).feature_info
            self.widths, self.strides = tuple(info.channels()), tuple(info.reduction())
            self.norms = nn.ModuleList()

    def forward(self, image: Float[Tensor, "B C H W"]) -> list[Tensor]:
        maps = planes(self.body, self.body(image))
        if isinstance(self.body, Backbone):
            norms = (*self.norms, self.body.norm)
            maps = [norm(x) for norm, x in zip(norms, maps, strict=True)]
        return maps

    def only(self, stages: Iterable[int]) -> None:
        """Drop the norms of all other maps: parameters without a gradient would stop DDP."""
        for i in set(range(len(self.norms))) - set(stages):
            self.norms[i] = nn.Identity()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in backward instead of keeping what they computed."""
        recompute(self.body, enable)

    def start_from(self, source: nn.Module) -> None:
        """Take the backbone of a classifier or a detector of the same architecture."""
        copy_body(self.body, self.timm_config["architecture"], source)


def build(name: str, in_chans: int = 3, drop_path: float | None = None, **options: Any) -> Features:
    """The maps of a fresh backbone; `options` are the variant's own, or timm's."""
    check(name)
    options = {"in_chans": in_chans, **options}
    if drop_path is not None:
        options["drop_path_rate"] = drop_path
    if name in zoo.VARIANTS:
        whole: Any = timm.create_model(name, num_classes=0, **options)
        return Features(whole.backbone, dict(whole.default_cfg))
    try:
        body: Any = timm.create_model(name, features_only=True, **options)
    except (RuntimeError, AttributeError) as error:
        raise ValueError(
            f"model {name!r} of timm gives no feature maps ({error}); try a convolutional one"
        ) from error
    return Features(body, dict(body.default_cfg))


def planes(body: nn.Module, maps: Iterable[Tensor]) -> list[Tensor]:
    """A backbone's maps as NCHW: some of timm's keep their channels last."""
    last = str(getattr(body, "output_fmt", "")).endswith("NHWC")
    return [x.permute(0, 3, 1, 2).contiguous() if last else x for x in maps]


def check(name: str) -> None:
    """Refuse an unknown name with the nearest one."""
    if not timm.is_model(name):
        close = nearest(name, [*zoo.VARIANTS, *timm.list_models()])
        raise ValueError(f"no model named {name!r}; did you mean {close!r}?")


def recompute(body: nn.Module, enable: bool = True) -> None:
    """Switch the recomputing of blocks, of saccade's stages or timm's."""
    stages = [m for m in body.modules() if isinstance(m, Stage)]
    for stage in stages:
        stage.checkpointing = enable
    if stages:
        return
    theirs = body if hasattr(body, "set_grad_checkpointing") else getattr(body, "model", None)
    if theirs is None:
        raise ValueError("loop.checkpointing: this backbone cannot recompute its blocks")
    cast(Any, theirs).set_grad_checkpointing(enable)


# -- weights to start from ------------------------------------------------------------------


def copy_body(body: nn.Module, architecture: str, source: nn.Module) -> None:
    """Copy the backbone of a classifier or another detector, however timm wrapped its parts.

    `features_only` keeps the modules and may join their names by `_` where there was a dot, or put
    `model.` before them.
    """
    about = getattr(source, "pretrained_cfg", None) or getattr(source, "default_cfg", {})
    theirs = about.get("architecture")
    if theirs != architecture:
        raise ValueError(
            f"the weights are of a {theirs!r} and the detector's backbone is a {architecture!r}; "
            f"set model.name={theirs}"
        )
    body, source = _core(body), _core(source)
    if isinstance(source, Backbone):
        fit_norms(body, source.state_dict())
    weights = {_joined(key): value for key, value in source.state_dict().items()}
    own = body.state_dict()
    for key, value in own.items():
        if key.endswith(COUNTER):
            weights.setdefault(_joined(key), value)
        other = weights.get(_joined(key))
        if other is None or other.shape != value.shape:
            there = "missing" if other is None else f"{tuple(other.shape)}"
            raise ValueError(
                f"the weights were built with other options: {key!r} is {tuple(value.shape)} here "
                f"and {there} there"
            )
    body.load_state_dict({key: weights[_joined(key)] for key in own})


COUNTER = "num_batches_tracked"  # which a frozen norm does not have


def _core(module: nn.Module) -> nn.Module:
    """The backbone itself: saccade's wherever it stands, or what timm built."""
    for inner in module.modules():
        if isinstance(inner, Backbone):
            return inner
    if isinstance(module, DenseNetwork):
        backbone: Any = module.backbone
        return backbone.body if isinstance(backbone, Features) else backbone.model
    return module


def _joined(key: str) -> str:
    return key.removeprefix("model.").replace(".", "_")
