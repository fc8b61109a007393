"""Parameters, multiply-adds and FLOPs, counted on the meta device: nothing is computed.

A FLOP is one multiplication or one addition, so FLOPs = 2 MACs. Counted are convolutions, matrix
products and attention, as papers do; norms, activations and softmax are not, except where SASA's
tables are read (saccade.paper.sasa), which count more. A layer that knows
several forms of itself is counted in the one its paper prints, whatever it would run.
"""

import copy
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.window import WindowAttention
from saccade.models.backbone import Stage
from saccade.models.detectors import DETECTORS
from saccade.models.sasa_retinanet import SIDE
from saccade.models.zoo import VARIANTS, Classifier, build, family_of
from saccade.paper import Claim, sasa, structure


def params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def flops(model: nn.Module, size: tuple[int, int] = (224, 224), in_chans: int = 3) -> int:
    """For one image of `size`; the model is taken to the meta device for it and left unchanged."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {
        name: t.to("meta", torch.float32 if t.is_floating_point() else t.dtype)
        for name, t in state.items()
    }
    with _as_printed(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        image = torch.empty(1, in_chans, *size, device="meta")
        torch.func.functional_call(model, meta, (image,))
    return counter.get_total_flops()


@contextmanager
def _as_printed(model: nn.Module) -> Generator[None]:
    """In eval mode, every layer in the form that its paper prints."""
    training = [(m, m.training) for m in model.modules()]
    forms = [(m, m.form) for m in model.modules() if hasattr(m, "printed")]
    try:
        model.eval()
        for module, _ in forms:
            module.form = module.printed
        yield
    finally:
        for module, mode in training:
            module.training = mode
        for module, form in forms:
            module.form = form


def macs(model: nn.Module, size: tuple[int, int] = (224, 224), in_chans: int = 3) -> int:
    return flops(model, size, in_chans) // 2


def counts_of(name: str, macs: bool = True) -> dict[str, Any]:
    """A variant's row of `saccade list`, as models/counts.json keeps it; `macs` take longest."""
    model = cast(Classifier, build(name, device="meta"))
    side = model.default_cfg["input_size"][1]
    row = {"family": family_of(name), "params": params(model)}
    if macs:
        row["macs"] = flops(model, (side, side)) // 2
    return {**row, "size": side, "widths": list(model.backbone.widths)}


def receptive_fields(name: str, side: int) -> list[int]:
    """How many pixels (on a side, `side` at most) can change the centre of each stage's map.

    These are the pixels that have a gradient in float64.
    """
    backbone = cast(Classifier, build(name, dtype=torch.float64)).backbone.eval()
    image = torch.rand(1, backbone.in_chans, side, side, dtype=torch.float64, requires_grad=True)
    fields = []
    for x in backbone(image):
        centre = x[0, :, x.shape[2] // 2, x.shape[3] // 2]
        weight = torch.randn_like(centre)  # a plain sum could cancel, as after a norm
        (g,) = torch.autograd.grad(centre @ weight, image, retain_graph=True)
        rows = g[0].abs().amax((0, 2)).nonzero()
        fields.append(int(rows.max() - rows.min()) + 1)
    return fields


# -- claims ---------------------------------------------------------------------------------


def _fused(model: Classifier) -> Classifier:
    return copy.deepcopy(model).eval().fuse()


def _stem(model: Classifier) -> str:
    conv = cast(nn.Conv2d, cast(Stage, model.backbone.stages[0]).down)
    side, stride = conv.kernel_size[0], conv.stride[0]
    return f"{side}x{side} conv, stride {stride}, dim {conv.out_channels}"


def _down_sampling(model: Classifier) -> list[tuple[int, ...]]:
    """Kernel, stride and padding of the convolutions from stage to stage."""
    stages = [cast(Stage, stage).down.modules() for stage in model.backbone.stages]
    convs = [m for modules in stages for m in modules if isinstance(m, nn.Conv2d)]
    return [(c.kernel_size[0], c.stride[0], cast(tuple[int, ...], c.padding)[0]) for c in convs]


def _other_down_sampling(model: Classifier) -> tuple[int, ...]:
    (shape,) = set(_down_sampling(model)[1:])
    return shape


def _heads_of(model: Classifier, kind: type[nn.Module]) -> tuple[int, ...]:
    """Heads of a kind of attention, in each stage whose blocks have it."""
    stages: Any = model.backbone.stages
    by_stage = [[b.mix.heads for b in s.blocks if isinstance(b.mix, kind)] for s in stages]
    return tuple(h for heads in by_stage for h in dict.fromkeys(heads))


def _outputs(model: Classifier) -> tuple[int, ...]:
    """Sides of the maps of an image of the model's size."""
    image = torch.empty(1, model.backbone.in_chans, *_side(model), device="meta")
    return tuple(x.shape[2] for x in model.backbone(image))


def _queries(layers: list[Any]) -> str:
    """Window and stride of QnA layers, where all have the same."""
    ((window, stride),) = {(layer.window, layer.stride) for layer in layers}
    return f"{window}x{window} QnA, stride {stride}"


def _blocks(model: Classifier) -> list[Any]:
    return [block for stage in model.backbone.stages for block in cast(Stage, stage).blocks]


def _sa_windows(model: Classifier) -> tuple[int, ...]:
    """Of the stages that have window attention."""
    stages = [[b.mix for b in cast(Stage, s).blocks] for s in model.backbone.stages]
    windows = [{m.window for m in s if isinstance(m, WindowAttention)} for s in stages]
    return tuple(side for inside in windows for side in inside)


def _side(model: Classifier) -> tuple[int, int]:
    return model.default_cfg["input_size"][1:]


MEASURES: dict[str, Callable[[Classifier], object]] = {
    "params": params,
    "backbone params": lambda model: params(model.backbone),
    "deployed params": lambda model: params(_fused(model)),
    "deployed backbone params": lambda model: params(_fused(model).backbone),
    "MACs": lambda model: macs(model, _side(model)),
    "FLOPs": lambda model: sasa.flops(model, _side(model)[0]),
    "widths": lambda model: model.backbone.widths,
    "depths": lambda model: model.backbone.depths,
    "heads": lambda model: model.backbone.heads,
    "expand": lambda model: model.backbone.expand,
    "SA depths": lambda model: model.backbone.sa_depths,
    "SA heads": lambda model: model.backbone.sa_heads,
    "heads of QnA blocks": lambda model: _heads_of(model, LearnedQueryAttention),
    "heads of SA blocks": lambda model: _heads_of(model, WindowAttention),
    "heads of down-sampling": lambda model: tuple(
        stage.down.mix.heads for stage in model.backbone.stages[1:]
    ),
    "first down-sampling": lambda model: _down_sampling(model)[0],
    "other down-sampling": _other_down_sampling,
    "outputs": _outputs,
    "stem": _stem,
    "blocks": lambda model: _queries(
        [b.mix for b in _blocks(model) if isinstance(b.mix, LearnedQueryAttention)]
    ),
    "down-sampling layers": lambda model: _queries(
        [stage.down.mix for stage in model.backbone.stages[1:]]
    ),
    "SA windows": _sa_windows,
    **structure.MEASURES,
}


def measure(name: str, claim: Claim) -> object | None:
    """The code's number for a claim about variant `name`; None if only a training run gives it."""
    if claim.what not in MEASURES:
        return None
    return MEASURES[claim.what](_model(name))


@lru_cache(maxsize=1)
def _model(name: str) -> Classifier:
    """Claims come model by model, and share it; no measure may change it."""
    with torch.device("meta"):
        return cast(Classifier, build(name))


def measure_detector(name: str, claim: Claim) -> int | None:
    """The same about one of the papers' detectors, at the size its paper counts FLOPs for."""
    if claim.what not in ("params", "FLOPs"):
        return None
    with torch.device("meta"):
        net = DETECTORS[name]()
    return params(net) if claim.what == "params" else flops(net, (SIDE, SIDE))


if __name__ == "__main__":
    from saccade.models.counts import FILE

    rows = (f"{json.dumps(name)}: {json.dumps(counts_of(name))}" for name in VARIANTS)
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
