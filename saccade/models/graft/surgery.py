"""Surgery on anybody's network, in place, with a report of what it changed and what that costs.

    report = graft(model, "sasa", where="layer4")
    print(report)

What was done is noted at the model (`model.grafts`), so that `saccade.save` writes it and
`saccade.load` does it again: words and numbers from an allowlist, no code.
"""

import copy
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.graft import attention, convolution, position, upsampling
from saccade.models.graft.site import Site, apart, describe, image_shape
from saccade.spelling import nearest

OPTIONS: dict[str, dict[str, type]] = {
    "sasa": {
        "heads": int, "window": int, "border": str, "content": bool, "position": str,
        "shared": bool, "scale": bool, "table": bool, "keep": bool,
    },
    "qna": {"heads": int, "window": int, "queries": int, "width": int, "keep": bool},
    "key-only": {"heads": int, "keep": bool},
    "rp-cpe": {"branches": int, "skip": bool, "norm": bool, "keep": bool},
    "qna-up": {"heads": int, "window": int, "width": int, "keep": bool},
}  # fmt: skip
PLACES = {
    "sasa": "3x3 convolutions",
    "qna": "3x3 convolutions, or the attention of ViT, DeiT, PVTv2 and Swin",
    "key-only": "the attention of ViT, DeiT, PVTv2 and Swin",
    "rp-cpe": "the feed-forwards of ViT, DeiT, PVTv2, Swin and ConvNeXt",
    "qna-up": "transposed convolutions, nn.Upsample and the blocks of smp's Unet",
}
MOST, LARGEST, LONGEST = 1000, 4096, 200  # places, numbers and letters that a file may name
WORDS: dict[type, str] = {
    int: f"a whole number from 1 to {LARGEST}", bool: "true or false", str: "a word",
}  # fmt: skip


@dataclass
class Change:
    """One place."""

    path: str
    before: str
    after: str
    difference: float | None = None
    """With `keep`: how far the new layer begins from the old, as a share of the old one's map."""


@dataclass
class Report:
    """What `graft` did."""

    what: str
    changes: list[Change] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Places that were left, and why."""
    params: tuple[int, int] = (0, 0)
    """Before and after."""
    macs: tuple[int, int] | None = None
    """Multiply-adds of one image, before and after; None where they cannot be counted."""
    image: tuple[int, int, int] = (3, 224, 224)
    """The image that they are counted with."""

    def __str__(self) -> str:
        wide = max((len(c.path) for c in self.changes), default=0)
        old = max((len(c.before) for c in self.changes), default=0)
        lines = []
        for c in self.changes:
            near = "" if c.difference is None else f"   begins {c.difference:.1%} away"
            lines.append(f"{c.path:<{wide}}  {c.before:<{old}} -> {c.after}{near}")
        lines += [f"{path:<{wide}}  left: {why}" for path, why in self.skipped]
        before, after = self.params
        total = f"{len(self.changes)} x {self.what}; parameters {_short(before)} -> {_short(after)}"
        if self.macs is not None:
            size = " x ".join(map(str, self.image))
            total += f", MACs {_short(self.macs[0])} -> {_short(self.macs[1])} at {size}"
        return "\n".join([*lines, total])


def _short(number: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.2f}{letter}"
    return str(number)


def graft(
    model: nn.Module,
    what: str,
    where: str | Sequence[str] | None = None,
    *,
    keep: bool = False,
    image: Sequence[int] | None = None,
    **options: Any,
) -> Report:
    """Put one of our layers into a network, in place.

    Args:
        model: a network of timm, torchvision, segmentation_models_pytorch, saccade or yourself
        what: "sasa" (3x3 convolutions to stand-alone self-attention), "qna" (3x3 convolutions or
            attention to learned queries), "key-only" (attention to key-only attention), "rp-cpe"
            (RP-CPE into feed-forwards) or "qna-up" (up-sampling to QnA's up-sampler)
        where: names of modules, or of what they are in ("layer4"), or patterns ("layer*.conv2");
            all places if None
        keep: begin as the old layer's function, or as near to it as the new one can be
        image: channels, height and width of an image to count with; the model's own if None
        options: of the layer: heads, window, queries, ... (`docs/graft.md`)

    Returns:
        what changed, with parameters and multiply-adds before and after
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"graft: model is a network, got {type(model).__name__}; build it first")
    if keep:
        options["keep"] = True
    check(what, options)
    shape = image_shape(model) if image is None else _image(image)
    sites, skipped = _choose_sites(model, what, where, shape)
    if keep:
        for site in sites:
            if site.begin is None:
                raise ValueError(
                    f"graft: {what!r} cannot begin as {site.before} ({site.path}), which compares "
                    f"tokens in pairs; leave keep out"
                )
    report = Report(what, skipped=skipped, image=shape)
    params, macs = _params(model), _macs(model, shape)
    report.changes = _replace(model, sites, options, keep)
    _note(model, {"what": what, "where": [site.path for site in sites], "options": options})
    after = _macs(model, shape)
    report.params = params, _params(model)
    report.macs = None if macs is None or after is None else (macs, after)
    return report


def _replace(
    model: nn.Module, sites: Sequence[Site], options: dict[str, Any], keep: bool
) -> list[Change]:
    """Make all new layers first, so that nothing is changed if one cannot be."""
    changes, layers = [], []
    for site in sites:
        if site.make is None:  # those were left out
            raise RuntimeError(site.why)
        old, new = model.get_submodule(site.path), site.make(options)
        change = Change(site.path, site.before, _after(new))
        if keep and site.begin is not None:
            site.begin(new, old)
            meta = any(p.is_meta for p in new.parameters())
            if site.reads and not meta:
                change.difference = apart(new, old, site.reads)
        layers.append(new)
        changes.append(change)
    for site, layer in zip(sites, layers, strict=True):
        if site.put is not None:
            site.put(layer)
    return changes


def _after(new: nn.Module) -> str:
    inner: Any = getattr(new, "position", new)
    inner = inner if isinstance(inner, nn.Module) else new
    words = [f"{k} {v}" for k in ("heads", "window") if (v := getattr(inner, k, None)) is not None]
    return " ".join([describe(inner), *words])


def _choose_sites(
    model: nn.Module, what: str, where: str | Sequence[str] | None, image: tuple[int, int, int]
) -> tuple[list[Site], list[tuple[str, str]]]:
    """The places that the arguments name, and the skipped ones with a reason."""
    places = list(_sites(model, what, image))
    if what == "qna" and where is None and any(p.make for p in places if not p.reads):
        places = [p for p in places if not p.reads]  # of a transformer, only attention
    patterns = None if where is None else [where] if isinstance(where, str) else where
    if patterns is not None and not (
        isinstance(patterns, list | tuple) and all(isinstance(p, str) for p in patterns)
    ):
        raise ValueError(f"graft: where is a name or a list of names, got {where!r}")
    sites, skipped, used_patterns = [], [], set()
    for place in places:
        names = [] if patterns is None else [p for p in patterns if _means(p, place.path)]
        if patterns is not None and not names:
            continue
        used_patterns.update(names)
        if place.make is None or (place.only_named and place.path not in (patterns or ())):
            skipped.append((place.path, place.why))
        else:
            sites.append(place)
    unmatched = [p for p in patterns or () if p not in used_patterns]
    if unmatched or not sites:
        there = [p.path for p in places if p.make is not None]
        hint = f"there are {', '.join(there[:6])}{', ...' if len(there) > 6 else ''}"
        if not there:
            hint = f"it takes {PLACES[what]}"
        which = (
            f" at {unmatched[0]!r}" if unmatched else "" if not skipped else f" ({skipped[0][1]})"
        )
        raise ValueError(f"graft: {type(model).__name__} has no place for {what!r}{which}; {hint}")
    return sites, skipped


def _sites(model: nn.Module, what: str, image: tuple[int, int, int]) -> Iterator[Site]:
    if what in ("key-only", "qna"):
        yield from attention.sites(model, what)
    if what in ("sasa", "qna"):
        yield from convolution.sites(model, what)
    if what == "rp-cpe":
        yield from position.sites(model)
    if what == "qna-up":
        yield from upsampling.sites(model, image)


def _means(pattern: str, path: str) -> bool:
    return path == pattern or path.startswith(f"{pattern}.") or fnmatch.fnmatchcase(path, pattern)


def _image(image: Sequence[int]) -> tuple[int, int, int]:
    try:
        C, H, W = (int(side) for side in image)
    except (TypeError, ValueError) as error:
        raise ValueError(f"graft: image is (channels, height, width), got {image!r}") from error
    return C, H, W


def _params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def _macs(model: nn.Module, image: tuple[int, int, int]) -> int | None:
    """Multiply-adds of one image, on no memory; None where the model cannot be run so."""
    try:
        net = copy.deepcopy(model).to("meta").eval()
        like = next(net.parameters())
        with FlopCounterMode(display=False) as counter:
            net(torch.empty(1, *image, device="meta", dtype=like.dtype))
    except Exception:  # other people's models fail in many ways
        return None
    return counter.get_total_flops() // 2


# -- in files and recipes -------------------------------------------------------------------------


def check(what: Any, options: Any) -> None:
    """Refuse words and values that no graft has."""
    if not isinstance(what, str) or what not in OPTIONS:
        close = nearest(str(what)[:LONGEST], OPTIONS)
        raise ValueError(
            f"graft: no layer {str(what)[:LONGEST]!r}; did you mean {close!r}? "
            f"({', '.join(OPTIONS)})"
        )
    if not isinstance(options, dict):
        raise ValueError(f"graft: options are words with values, got {type(options).__name__}")
    options_of = OPTIONS[what]
    for name, value in options.items():
        if name not in options_of:
            raise ValueError(
                f"graft: {what!r} has no option {str(name)[:LONGEST]!r}; "
                f"it takes {', '.join(options_of)}"
            )
        kind = options_of[name]
        if type(value) is not kind or (kind is int and not 0 < value <= LARGEST):
            raise ValueError(f"graft: {name} is {WORDS[kind]}, got {str(value)[:LONGEST]!r}")


def _note(model: nn.Module, record: dict[str, Any]) -> None:
    net: Any = model
    net.grafts = [*getattr(net, "grafts", []), record]


def again(model: nn.Module, records: Any) -> nn.Module:
    """Do to a model what a file says was done to the one that it holds; weights come later."""
    if not isinstance(records, list) or len(records) > MOST:
        raise ValueError("graft: a file notes grafts as a list")
    for record in records:
        if not isinstance(record, dict) or {*record} != {"what", "where", "options"}:
            raise ValueError("graft: a file notes of each graft what, where and options")
        where = record["where"]
        names = isinstance(where, list) and all(isinstance(path, str) for path in where)
        if not names or not 0 < len(where) <= MOST:
            raise ValueError("graft: a file notes the places of a graft as a list of names")
        check(record["what"], record["options"])
        sites, _ = _choose_sites(model, record["what"], where, image_shape(model))
        _replace(model, sites, record["options"], keep=False)
        _note(model, record)
    return model


def several(model: nn.Module, text: str) -> list[Report]:
    """The grafts that a recipe names: "sasa where=layer3,layer4 window=5; rp-cpe keep=true"."""
    reports = []
    for part in text.split(";"):
        what, *words = part.split()[:1] + part.split()[1:] or [""]
        options: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"graft: options are NAME=VALUE, got {word!r}; such as window=5")
            options[name] = value.split(",") if name == "where" else _value(value)
        where, keep = options.pop("where", None), options.pop("keep", False)
        if type(keep) is not bool:
            raise ValueError(f"graft: keep is true or false, got {keep!r}")
        if "image" in options:
            raise ValueError("graft: 'image' is the model's own in a recipe; leave it out")
        reports.append(graft(model, what, where, keep=keep, **options))
    return reports


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() else text
