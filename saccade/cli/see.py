"""`view`: what a model looks at in a picture, drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from saccade.cli.command import File, ModelName, Side, Value
from saccade.cli.console import say

ENDINGS = (".png", ".gif")
BRIGHTEST = 99.0  # the percentile of a map from which on all values have the brightest colour
FEW, PAIR = 4, 2  # maps of a stage that are drawn large: of heads, and of kernels


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
        heads: how many heads of a stage are drawn, those that differ most; 4 if left out (2 with
            --kernels)
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
    subject = _subject(image, model, size)
    if evidence:
        if pixel is not None or kernels:
            raise ValueError("view: evidence is of the whole picture; leave --at and --kernels out")
        if heads is not None:
            raise ValueError("view: evidence is of classes, not of heads; leave --heads out")
        _evidence(subject, out)
    else:
        family = views.attention_of(subject.net, subject.name)
        if kernels and family != "qna":
            raise ValueError(f"view: kernels are drawn of qna, and {subject.name!r} is {family}")
        if pixel is not None and (family == "linglo" or kernels):
            what = "kernels are" if kernels else "saliency is"
            raise ValueError(f"view: {what} drawn for all pixels at once; leave --at out")
        _attention(subject, family, pixel, kernels, heads, out)
    say(f"drawn: {out}")


@dataclass
class Subject:
    """A model, how it is called, and what it sees of a picture."""

    name: str
    trained: bool
    net: Any
    sight: Any


def _subject(image: Path, model: str, size: int | None) -> Subject:
    from saccade import weights
    from saccade.data import picture
    from saccade.face import sight
    from saccade.models import zoo
    from saccade.models.saved import load, located

    if not image.is_file():
        raise FileNotFoundError(f"no picture {str(image)!r}; check the path")
    name, trained = weights.full(model) or Path(model).name, located(model) is not None
    net: Any = load(model) if trained else zoo.build(model).eval()
    maps = sight.sight_of(net, picture.rgb(image, str(image)), str(image), size)
    return Subject(name, trained, net, maps)


def _place(at: str) -> tuple[int, int]:
    """`20,100`, also in brackets."""
    parts = at.strip("[]() ").replace(",", " ").split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"view: --at is ROW,COLUMN, such as --at 20,100; got {at!r}")
    return int(parts[0]), int(parts[1])


def _attention(
    subject: Subject,
    family: str,
    pixel: tuple[int, int] | None,
    kernels: bool,
    heads: str | None,
    out: Path,
) -> None:
    from saccade import view as views

    net, sight = subject.net, subject.sight
    if kernels:
        maps, what, ring = views.qna_kernels(net, sight.x), "the kernel of every window", None
    else:
        inner = sight.within(pixel) if pixel else None
        maps, _, what, ring = views.maps_of(net, sight.x, family, inner)
    stages = views.last_layers(maps)
    how_many = heads or str(PAIR if kernels else FEW)
    laid, labels, few = {}, {}, False
    for stage, layer in stages.items():
        flat = maps[layer].reshape(-1, *maps[layer].shape[-2:])
        count = len(flat) if how_many == "all" else int(how_many)
        chosen_maps = views.most_different(flat, count) if count < len(flat) else range(len(flat))
        few = few or len(chosen_maps) < len(flat)
        laid[stage] = flat[list(chosen_maps)]
        names = views.labels_of(net.get_submodule(layer), len(flat))
        labels[stage] = [names[i] for i in chosen_maps]
    most = max(map(len, laid.values()))
    side = views.SMALL if most > FEW else views.LARGE if most > PAIR else views.FULL
    tile = (
        {stage: net.get_submodule(layer).window for stage, layer in stages.items()}
        if kernels
        else None
    )
    note = "" if subject.trained else ", untrained"
    title = f"{subject.name}{note}: {what}; the last such layer of each stage"
    title += f", and of its heads the {how_many} that differ most (--heads all)" if few else ""
    pointed = pixel is not None or family == "sasa"
    views.picture(
        sight.photo, laid, out, title, labels, ring=ring, clip=100.0 if pointed else BRIGHTEST,
        side=side, smooth=family == "qna" and not pointed and not kernels, tile=tile,
    )  # fmt: skip


def _evidence(subject: Subject, out: Path) -> None:
    """The three likeliest classes, and which pixels spoke for and against each."""
    import torch

    from saccade import view as views

    net, sight = subject.net, subject.sight
    classes = getattr(net, "notes", {}).get("classes")
    if not classes:
        raise ValueError("view: evidence is a trained model's; --model RUN, or train one first")
    with torch.no_grad():
        shares, labels = net(sight.x)[0].softmax(-1).topk(min(3, len(classes)))
    maps = views.class_evidence(net, sight.x, labels.tolist(), fine=True, relative=True)
    captions = [f"{classes[i]} {100 * s:.1f}%" for i, s in zip(labels, shares, strict=True)]
    title = f"{subject.name}: what speaks for (red) and against (blue) each class, over all others"
    views.picture(sight.photo, {"seen": maps}, out, title, captions, signed=True, side=views.LARGE)
