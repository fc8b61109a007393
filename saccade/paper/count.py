"""Parameters, multiply-adds and FLOPs, counted on the meta device: nothing is computed.

A FLOP is one multiplication or one addition, so FLOPs = 2 MACs. Counted are convolutions, matrix
products and attention, as papers do; norms, activations and softmax are not, except where SASA's
tables are read (saccade.paper.sasa), which count more. A layer that knows
several forms of itself is counted in the one its paper prints, whatever it would run.
"""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.detectors import DETECTORS
from saccade.models.sasa_retinanet import SIDE
from saccade.models.zoo import VARIANTS, Classifier, build, family_of
from saccade.paper import Claim, sasa


def params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def flops(model: nn.Module, size: tuple[int, int] = (224, 224), in_chans: int = 3) -> int:
    """For one image of `size`; the model is taken to the meta device for it and left unchanged."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {name: t.to("meta", torch.float32) for name, t in state.items()}
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


def counted(name: str, macs: bool = True) -> dict[str, Any]:
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


def _deployed(model: Classifier) -> nn.Module:
    return model.eval().fuse().backbone


def _side(model: Classifier) -> tuple[int, int]:
    return model.default_cfg["input_size"][1:]


MEASURES: dict[str, Callable[[Classifier], object]] = {
    "params": params,
    "backbone params": lambda model: params(model.backbone),
    "deployed params": lambda model: params(model.eval().fuse()),
    "deployed backbone params": lambda model: params(_deployed(model)),
    "MACs": lambda model: macs(model, _side(model)),
    "FLOPs": lambda model: sasa.flops(model, _side(model)[0]),
    "widths": lambda model: model.backbone.widths,
    "depths": lambda model: model.backbone.depths,
    "heads": lambda model: model.backbone.heads,
    "expand": lambda model: model.backbone.expand,
    "SA depths": lambda model: model.backbone.sa_depths,
    "SA heads": lambda model: model.backbone.sa_heads,
    "heads of the ways down": lambda model: tuple(
        stage.down.mix.heads for stage in model.backbone.stages[1:]
    ),
}


def measure(name: str, claim: Claim) -> object | None:
    """The code's number for a claim about variant `name`; None if only a training run gives it."""
    if claim.what not in MEASURES:
        return None
    with torch.device("meta"):
        model = build(name)
    return MEASURES[claim.what](cast(Classifier, model))


def measure_detector(name: str, claim: Claim) -> int | None:
    """The same about one of the papers' detectors, at the size its paper counts FLOPs for."""
    if claim.what not in ("params", "FLOPs"):
        return None
    with torch.device("meta"):
        net = DETECTORS[name]()
    return params(net) if claim.what == "params" else flops(net, (SIDE, SIDE))


if __name__ == "__main__":
    from saccade.models.counts import FILE

    rows = (f"{json.dumps(name)}: {json.dumps(counted(name))}" for name in VARIANTS)
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
