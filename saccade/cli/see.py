"""`view`: what a model looks at in a picture, drawn."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from saccade.cli.command import File, ModelName, Side, Value
from saccade.cli.console import say

DRAWN = 384  # pixels of the short side under the maps, where a model sees less
ENDINGS = (".png", ".gif")
BRIGHTEST = 99.0  # percent; what is brighter than so many pixels is drawn alike
FEW, PAIR = 4, 2  # maps that a stage of qna has room for: its sums, and its kernels


def view(
    image: Annotated[Path, Value("PICTURE", "files")],
    *,
    model: ModelName = "linglo_nano",
    out: File = Path("view.png"),
    size: Side | None = None,
    at: Annotated[str, Value("ROW,COLUMN")] | None = None,
    heads: Annotated[str, Value("N|all")] | None = None,
    kernels: bool = False,
    evidence: bool = False,
) -> None:
    """Draw where each head of each stage looks, or where a decision comes from.

    Examples:
        saccade view cat.jpg
        saccade view cat.jpg --model qna_nano --at 150,200
        saccade view cat.jpg --model runs/quick --evidence --out why.png

    Args:
        image: a picture file
        model: a model's name, a run's folder, or a file that saccade saved
        out: the PNG to write; a GIF shows stage after stage
        size: side at which the model sees the picture; as it was trained to if left out
        at: for sasa and qna, the pixel of the picture that looks
        heads: how many heads of a stage are drawn, those that differ most; if left out, 4 for qna
            (2 with --kernels), all for others
        kernels: for qna, the weights of every window side by side, instead of their sum by pixel
        evidence: where a trained classifier's likeliest classes were seen, instead of attention
    """
    from saccade import view as views

    if out.suffix.lower() not in ENDINGS:
        raise ValueError(f"view: draws a .png or a .gif, got {out.name!r}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"view: no folder {str(out.parent)!r} to draw into; make it first")
    if size is not None and size < 32:
        raise ValueError(f"view: --size is 32 pixels or more, got {size}")
    pixel = None if at is None else _place(at)
    if heads not in (None, "all") and not (heads.isdecimal() and int(heads) > 0):
        raise ValueError(f"view: --heads is how many, such as 4, or all; got {heads!r}")
    sight = _sight(image, model, size)
    if evidence:
        if pixel is not None or kernels:
            raise ValueError("view: evidence is of the whole picture; leave --at and --kernels out")
        if heads is not None:
            raise ValueError("view: evidence is of classes, not of heads; leave --heads out")
        _evidence(sight, out)
    else:
        family = views.attention_of(sight.net, sight.called)
        if kernels and family != "qna":
            raise ValueError(f"view: kernels are drawn of qna, and {sight.called!r} is {family}")
        if pixel is not None and (family == "linglo" or kernels):
            what = "kernels are of all pixels" if kernels else "saliency is of all pixels"
            raise ValueError(f"view: {what}; leave --at out")
        _attention(sight, family, pixel, kernels, heads, out)
    say(f"drawn: {out}")


@dataclass
class Sight:
    """A model and what it sees of a picture."""

    called: str
    net: Any
    trained: bool
    photo: Any
    """Drawn under the maps: the part that the model sees, perhaps in finer grain."""
    x: Any
    whole: tuple[int, int]
    """Height and width of the file's picture, upright."""
    seen: tuple[float, float, float, float]
    """Top, left, height and width of what the model sees, in pixels of the file."""

    def within(self, pixel: tuple[int, int]) -> tuple[int, int]:
        """A pixel of the file as the model's input has it."""
        H, W = self.whole
        if not (0 <= pixel[0] < H and 0 <= pixel[1] < W):
            raise ValueError(f"view: the picture has {H} rows and {W} columns, got --at {pixel}")
        top, left, height, width = self.seen
        places = []
        for place, start, length, side, word in (
            (pixel[0], top, height, self.x.shape[2], "rows"),
            (pixel[1], left, width, self.x.shape[3], "columns"),
        ):
            pixel_there = math.floor((place + 0.5 - start) * side / length)
            if not 0 <= pixel_there < side:
                raise ValueError(
                    f"view: the model sees {word} {math.ceil(start)} to "
                    f"{math.floor(start + length) - 1} of this picture, got --at {pixel}"
                )
            places.append(pixel_there)
        return places[0], places[1]


def _sight(image: Path, model: str, size: int | None) -> Sight:
    """As `predict` would show it, where the model is a classifier; the whole picture elsewhere."""
    from saccade import weights
    from saccade.data import picture
    from saccade.data.augment import Trim
    from saccade.engine import session
    from saccade.models import zoo
    from saccade.models.describe import timm_config
    from saccade.models.saved import load, located

    if not image.is_file():
        raise FileNotFoundError(f"no picture {str(image)!r}; check the path")
    called, trained = weights.full(model) or Path(model).name, located(model) is not None
    net: Any = load(model) if trained else zoo.build(model).eval()
    if trained and "classes" in net.notes:
        ready = session.ready(net)
        if ready.definition.command == "predict":
            test = ready.test
            test = test if size is None else dataclasses.replace(test, size=size)
            file = picture.rgb(image, str(image))
            x = ready.transform(test)(file)[None]
            fine = dataclasses.replace(test, size=max(DRAWN, test.size))
            drawn = ready.definition.test_transform(fine, (0.0,) * 3, (1.0,) * 3)(file)
            photo = drawn.permute(1, 2, 0).clamp(0, 1).numpy()
            trimmed = Trim()(file).size
            side = test.crop * min(trimmed)
            seen = (file.height - side) / 2, (file.width - side) / 2, side, side
            return Sight(called, net, True, photo, x, (file.height, file.width), seen)
    side = size or timm_config(net)["input_size"][1]
    photo = picture.read(image, side)
    H, W = photo.shape[:2]
    x = picture.to_input(photo, timm_config(net))
    stored = picture.size(image)
    w, h = stored.upright if stored else (W, H)
    return Sight(called, net, trained, photo, x, (h, w), (0.0, 0.0, float(h), float(w)))


def _place(at: str) -> tuple[int, int]:
    """`20,100`, also in brackets."""
    parts = at.strip("[]() ").replace(",", " ").split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"view: --at is ROW,COLUMN, such as --at 20,100; got {at!r}")
    return int(parts[0]), int(parts[1])


def _attention(
    sight: Sight,
    family: str,
    pixel: tuple[int, int] | None,
    kernels: bool,
    heads: str | None,
    out: Path,
) -> None:
    from saccade import view as views

    net, x, clip, ring = sight.net, sight.x, 100.0, None
    if family == "sasa" or pixel is not None:
        inner = sight.within(pixel) if pixel else (x.shape[2] // 2, x.shape[3] // 2)
        ring = (inner[0] + 0.5) / x.shape[2], (inner[1] + 0.5) / x.shape[3]
        looks = views.sasa_attention if family == "sasa" else views.qna_attention
        maps, what = looks(net, x, inner), "where the ringed pixel looks"
    elif family == "qna":
        maps = (views.qna_kernels if kernels else views.qna_summed_attention)(net, x)
        what = "the kernel of every window" if kernels else "attention summed by pixel"
        clip = BRIGHTEST
    else:
        maps, what, clip = views.linglo_saliency(net, x), "saliency", BRIGHTEST
    stages = views.last_layers(maps)
    usual = str(PAIR if kernels else FEW) if family == "qna" else "all"
    count = None if (heads or usual) == "all" else int(heads or usual)
    laid, labels, few = {}, {}, False
    for stage, layer in stages.items():
        flat = maps[layer].reshape(-1, *maps[layer].shape[-2:])
        drawn = range(len(flat)) if count is None else views.most_different(flat, count)
        few = few or len(drawn) < len(flat)
        laid[stage] = flat[list(drawn)]
        names = _names(net.get_submodule(layer), len(flat))
        labels[stage] = [names[i] for i in drawn]
    most = max(map(len, laid.values()))
    side = views.SMALL if most > FEW else views.LARGE if most > PAIR else views.FULL
    tile = (
        {stage: net.get_submodule(layer).window for stage, layer in stages.items()}
        if kernels
        else None
    )
    note = "" if sight.trained else ", untrained"
    title = f"{sight.called}{note}: {what}; the last such layer of each stage"
    title += f", and of its heads the {count} that differ most" if few else ""
    views.picture(
        sight.photo, laid, out, title, labels, ring=ring, clip=clip,
        side=side if family == "qna" else views.SMALL,
        smooth=family == "qna" and not kernels and pixel is None,
        tile=tile,
    )  # fmt: skip


def _names(layer: Any, count: int) -> list[str]:
    """What each map of a layer is called on the sheet."""
    queries = getattr(layer, "queries", 1)
    heads = [f"head {i + 1}" for i in range(count // queries)]
    if queries == 1:
        return heads
    return [f"query {q + 1}, {head}" for q in range(queries) for head in heads]


def _evidence(sight: Sight, out: Path) -> None:
    """The three likeliest classes, and which pixels spoke for and against each."""
    import torch

    from saccade import view as views

    classes = getattr(sight.net, "notes", {}).get("classes")
    if not classes:
        raise ValueError("view: evidence is a trained model's; --model RUN, or train one first")
    with torch.no_grad():
        shares, labels = sight.net(sight.x)[0].softmax(-1).topk(min(3, len(classes)))
    maps = views.class_evidence(sight.net, sight.x, labels.tolist())
    named = [f"{classes[i]} {100 * s:.1f}%" for i, s in zip(labels, shares, strict=True)]
    title = f"{sight.called}: what speaks for (red) and against (blue) each class"
    views.picture(sight.photo, {"seen": maps}, out, title, named, signed=True)
