"""Every variant of every family as a timm model, through one class.

After `import saccade`, `timm.create_model("linglo_b1", num_classes=10)` works, and with it all that
takes timm models: `features_only`, optimisers with layer decay, transformers' `TimmBackboneConfig`,
segmentation_models_pytorch's `tu-` encoders.
"""

import fnmatch
import inspect
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import timm
import torch
from jaxtyping import Float
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import ClassifierHead, register_notrace_module
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from saccade import outside, weights
from saccade.layers.head import classified
from saccade.layers.ready import normed
from saccade.layers.walk import walkable, walked
from saccade.models import linglo, qna, sasa
from saccade.models.backbone import Backbone, Door, Stage
from saccade.models.card import as_trained
from saccade.models.face import Face
from saccade.paper import Claim
from saccade.spelling import nearest

FAMILIES = {"linglo": linglo, "qna": qna, "sasa": sasa}
VARIANTS: dict[str, partial[Backbone]] = {
    name: make for family in FAMILIES.values() for name, make in family.VARIANTS.items()
}

OUTSIDE = "outside"
"""The family of models that `add_variant` made known."""
CARDS: dict[str, dict[str, Any]] = {}
"""What their timm descriptions have of their own."""

POOLS = ("avg", "max", "avgmax", "catavgmax", "fast", "fastavg", "fastmax", "fastavgmax",
         "fastcatavgmax", "")  # fmt: skip

# What branches on sizes or on its mode is one node to torch.fx.
register_notrace_module(Door)
for _family in FAMILIES.values():
    for _leaf in _family.LEAVES:
        register_notrace_module(_leaf)


@walkable
class Classifier(Face, nn.Module):
    """A backbone with a pooled linear head, with the methods and attributes of timm's models."""

    default_cfg: dict[str, Any]  # timm sets it: input size, normalisation, names of the ends

    def __init__(
        self,
        make: partial[Backbone],
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **overrides: Any,
    ):
        super().__init__()
        if drop_path_rate is not None:
            overrides["drop_path"] = drop_path_rate
        _check_overrides(make, overrides)
        if not isinstance(global_pool, str) or global_pool not in POOLS:
            choices = ", ".join(map(repr, POOLS))
            raise ValueError(f"global_pool: one of {choices}, got {global_pool!r}")
        with torch.device(device) if device is not None else nullcontext():
            self.backbone = make(in_chans=in_chans, **overrides)
            self.head = ClassifierHead(
                self.backbone.widths[-1], num_classes, pool_type=global_pool, drop_rate=drop_rate
            )
        self.init_head()
        if dtype is not None:
            self.to(dtype=dtype)
        self.num_classes = num_classes
        self.overrides = overrides
        self.fused = False
        self._declare_features()

    def _declare_features(self) -> None:
        widths, strides = self.backbone.widths, self.backbone.strides
        self.num_features = self.head_hidden_size = widths[-1]
        self.feature_info = [
            {"num_chs": width, "reduction": stride, "module": f"backbone.stages.{i}"}
            for i, (width, stride) in enumerate(zip(widths, strides, strict=True))
        ]

    def init_head(self) -> None:
        if isinstance(self.head.fc, nn.Linear):
            nn.init.trunc_normal_(self.head.fc.weight, std=0.02)
            nn.init.zeros_(self.head.fc.bias)

    def init_weights(self) -> None:
        """Draw every parameter anew: what a model built on the meta device needs after to_empty."""
        for module in reversed(list(self.modules())):  # parts first, then the layer
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        self.init_head()

    def fuse(self) -> "Classifier":
        """Re-parameterise for deployment, exactly: fewer parameters, the same function."""
        for module in list(self.backbone.modules()):
            fuse = getattr(module, "fuse", None)
            if callable(fuse):
                fuse()
        self.fused = True
        return self

    # -- timm's protocol ---------------------------------------------------------------------

    def forward_features(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        return self.backbone.last(x)

    def forward_head(self, x: Float[Tensor, "B D h w"], pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=True) if pre_logits else classified(x, self.head)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Tensor:
        if type(x) is Tensor and not torch.compiler.is_compiling() and self._as_written():
            logits = walked(x, self, Classifier._logits, "logits")
            if logits is not None:
                return logits[0]
        return self.forward_head(self.forward_features(x))

    def _logits(self, x: Float[Tensor, "B C H W"]) -> list[Tensor]:
        """The logits of an image that `forward` has checked, computed module by module."""
        return [classified(self.backbone.last_steps(x), self.head)]

    def _as_written(self) -> bool:
        """Whether all methods that `forward` calls are those of the class, not patched ones."""
        own, parts = self.__dict__, self.backbone.__dict__
        here = Classifier.forward_features, Classifier.forward_head, type(self.backbone).last
        replaced = "forward_features" in own or "forward_head" in own or "last" in parts
        return here == _WAYS and not replaced

    def forward_intermediates(
        self,
        x: Float[Tensor, "B C H W"],
        indices: int | list[int] | tuple[int, ...] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The maps at `indices`, and the last one as the head sees it."""
        if output_fmt != "NCHW":
            raise ValueError(f"forward_intermediates: maps are NCHW, got {output_fmt=}")
        stages = self.backbone.stages
        places, last = feature_take_indices(len(stages), _as_list(indices))
        x = self.backbone.stem(self.backbone.door(x))
        maps = []
        for i, stage in enumerate(stages[: last + 1] if stop_early else stages):
            x = stage(x)
            if i in places:
                final = norm and i == len(stages) - 1
                maps.append(normed(x, self.backbone.norm) if final else x)
        return maps if intermediates_only else (normed(x, self.backbone.norm), maps)

    def prune_intermediate_layers(
        self,
        indices: int | list[int] | tuple[int, ...] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Drop what comes after the last map that is asked for."""
        backbone = self.backbone
        places, last = feature_take_indices(len(backbone.stages), _as_list(indices))
        if last + 1 < len(backbone.stages) or prune_norm:
            backbone.norm = nn.Identity()
        backbone.stages = backbone.stages[: last + 1]
        backbone.widths = backbone.widths[: last + 1]
        backbone.strides = backbone.strides[: last + 1]
        if prune_head:
            pool, drop = self.head.global_pool.pool_type, self.head.drop.p
            self.head = ClassifierHead(backbone.widths[-1], 0, pool_type=pool, drop_rate=drop)
            self.num_classes = 0
        self._declare_features()
        return places

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        like = next(self.backbone.parameters())
        self.head.reset(num_classes, global_pool, device=like.device, dtype=like.dtype)
        self.init_head()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in backward instead of keeping what they computed."""
        for stage in self.backbone.stages.modules():
            if isinstance(stage, Stage):
                stage.checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict:
        stage = r"^backbone\.stages\.(\d+)"
        blocks = stage if coarse else [
            (stage + r"\.down", (0,)),
            (stage + r"\.blocks\.(\d+)", None),
            (stage + r"\.norm", (99999,)),
        ]  # fmt: skip
        return {"stem": r"^backbone\.stem", "blocks": blocks}

    def no_weight_decay(self) -> set[str]:
        """Names of what layers declare `undecayed`, such as position tables."""
        return {
            f"{path}.{name}"
            for path, module in self.named_modules()
            for name in getattr(module, "undecayed", ())
        }


_WAYS = Classifier.forward_features, Classifier.forward_head, Backbone.last


def _as_list(indices: int | list[int] | tuple[int, ...] | None) -> int | list[int] | None:
    return list(indices) if isinstance(indices, tuple) else indices


def _check_overrides(make: partial[Backbone], overrides: Iterable[str]) -> None:
    parameters = [*inspect.signature(make.func).parameters]
    for key in overrides:
        if key not in parameters:
            raise TypeError(
                f"no argument named {key!r}; did you mean {nearest(key, parameters)!r}?"
            )


# -- names ----------------------------------------------------------------------------------


def names(pattern: str = "*") -> list[str]:
    """The names of saccade's variants, for `build` and `timm.create_model`.

    Args:
        pattern: with * and ?, such as "linglo_b*"
    """
    return [name for name in VARIANTS if fnmatch.fnmatch(name, pattern)]


def build(name: str, **overrides: Any) -> nn.Module:
    """Build a model with fresh weights; the same as `timm.create_model(name, ...)`.

        model = saccade.build("qna_nano", num_classes=10, window=5)
        logits = model(torch.randn(1, 3, 224, 224))           # any height and width
        maps = model.backbone(torch.randn(1, 3, 480, 640))    # feature maps, finest first

    Args:
        name: a variant; `saccade.names()` lists them, an unknown one is refused with the nearest
        overrides: timm's arguments (`num_classes`, `in_chans`, `drop_path_rate`, `global_pool`,
            `features_only`, `pretrained`), and the backbone's own (`widths`, `depths`, `heads`,
            `window`, ...), which the variant would set otherwise

    Returns:
        a `Classifier`: `model.backbone` gives the feature maps, `model.fuse()` re-parameterises
        it for deployment, `saccade.save(model, path)` keeps it
    """
    family_of(name)
    return timm.create_model(name, **overrides)


def family_of(name: str) -> str:
    """The paper a variant comes from; an unknown name is refused with the nearest one."""
    for family, module in FAMILIES.items():
        if name in module.VARIANTS:
            return family
    if name in VARIANTS:
        return OUTSIDE
    raise ValueError(f"no model named {name!r}; did you mean {nearest(name, VARIANTS)!r}?")


def claims(name: str) -> tuple[Claim, ...]:
    """What the paper prints about one variant."""
    family = FAMILIES.get(family_of(name))
    return family.CLAIMS.get(name, ()) if family else ()


def stated_arguments(name: str) -> dict[str, Any]:
    """The arguments that a file states even if nobody chose them, as the variant has them now.

    So a later change of a default does not change the models in older files.
    """
    if name not in VARIANTS:
        return {}
    parameters = inspect.signature(VARIANTS[name]).parameters
    return {key: parameters[key].default for key in unstated_arguments(name)}


def unstated_arguments(name: str) -> dict[str, Any]:
    """The same arguments as they were for files that do not state them yet."""
    family = FAMILIES.get(family_of(name)) if name in VARIANTS else None
    own = getattr(family, "STATED_BY", {}).get(name, {})
    return {**getattr(family, "STATED", {}), **own}


# -- registration with timm -----------------------------------------------------------------


def _timm_config(name: str) -> dict:
    """timm's description of a variant: input, normalisation, names of first and last layer."""
    family = FAMILIES.get(family_of(name))
    own = family.TIMM_CONFIGS.get(name, {}) if family else CARDS[name]
    return {
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "num_classes": 1000,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "backbone." + family.FIRST if family else "",
        "classifier": "head.fc",
        **own,
    }


def _stages(name: str, options: dict[str, Any]) -> int:
    """How many stages a variant with these options has: four, or as many as it names widths of."""
    arguments = {**VARIANTS[name].keywords, **options}
    return len(arguments.get("widths") or arguments.get("depths") or (0,) * 4)


def _register(name: str) -> None:
    def entry(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        # The last of the maps comes as the classifier sees it, through the backbone's norm.
        features = {"feature_cls": "getter", "out_indices": tuple(range(_stages(name, kwargs)))}
        if kwargs.get("feature_cls", "getter") == "getter":
            features["norm"] = True
        if pretrained:
            if not kwargs.get("pretrained_cfg"):
                kwargs["pretrained_cfg"] = (weights.full(name) or "").partition(".")[2] or None
            kwargs = {**_trained_with(name, kwargs["pretrained_cfg"]), **kwargs}
        make = partial(Classifier, VARIANTS[name])
        return build_model_with_cfg(make, name, pretrained, feature_cfg=features, **kwargs)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"{name}, of saccade's family {family_of(name)!r}."
    register_model(entry)


def _trained_with(name: str, tag: Any) -> dict[str, Any]:
    """The stated arguments of a variant's weights: in the package by a tag, or from elsewhere."""
    whole = f"{name}.{tag}"
    about = weights.header(whole)["model"] if whole in weights.FILES else {}
    return {key: about.get(key, value) for key, value in unstated_arguments(name).items()}


def _trained(name: str) -> dict:
    """timm's description of a model that comes with the package."""
    model, _, data = name.partition(".")
    card = as_trained(_timm_config(model), weights.header(name)["notes"])
    return {**card, "file": str(weights.FILES[name]), "license": weights.LICENCES[data]}


default_cfgs = generate_default_cfgs(
    {
        **{name: _timm_config(name) for name in VARIANTS},
        **{name: _trained(name) for name in weights.classifiers()},
    }
)
for _cfg in default_cfgs.values():  # fresh weights and 1000 classes unless one asks for others
    _cfg.tags = deque(sorted(_cfg.tags))
for _name in VARIANTS:
    _register(_name)


# -- models from outside --------------------------------------------------------------------


def add_variant(name: str, make: partial[Backbone], module: str, card: dict[str, Any]) -> None:
    """Make a backbone from outside known, to saccade and to timm, as all variants are.

    Args:
        name: what it is called
        make: makes the backbone; it takes `in_chans` and, for stochastic depth, `drop_path`
        module: where it comes from; a module that is run again may replace its own
        card: entries of timm's description that are not as usual
    """
    _check_name(name, module)
    VARIANTS[name], CARDS[name] = make, card
    default_cfgs.update(generate_default_cfgs({name: _timm_config(name)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # timm's, of a name that is registered anew
        _register(name)


TIMMS_OWN = ("cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")


def add_model(name: str, make: Callable[..., nn.Module], module: str, card: dict[str, Any]) -> None:
    """Make a whole network from outside known, as a model of timm's.

    Args:
        name: what it is called
        make: (num_classes, in_chans, **options) to a network
        module: where it comes from
        card: entries of timm's description that are not as usual
    """
    _check_name(name, module)
    about: dict[str, Any] = {
        "input_size": (3, 224, 224), "num_classes": 1000, "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD, "interpolation": "bicubic", "crop_pct": 0.875,
        "first_conv": "", "classifier": "", "architecture": name, **card,
    }  # fmt: skip

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        if pretrained:
            raise ValueError(f"{name}: there are no weights for it; leave pretrained out")
        options = {k: v for k, v in options.items() if k not in TIMMS_OWN}
        classes = options.setdefault("num_classes", 1000)
        options.setdefault("in_chans", 3)
        net: Any = make(**options)
        size = (options["in_chans"], *about["input_size"][1:])
        net.default_cfg = net.pretrained_cfg = {**about, "num_classes": classes, "input_size": size}
        net.num_classes = classes
        return net

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = make.__module__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        register_model(entry)


def _check_name(name: str, module: str) -> None:
    if timm.is_model(name) and outside.MODULES.get(name) != module:
        raise ValueError(f"register: a model named {name!r} is known already; rename yours")


outside.load_plugins()
