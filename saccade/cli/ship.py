"""`export`: a trained model as a file that runs without saccade."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from saccade.cli.console import console
from saccade.words import nearest

CALIBRATION = 128  # images that 8-bit ranges are measured on


def export(
    model: str,
    to: str = "onnx",
    out: Path | None = None,
    int8: bool = False,
    data: str | None = None,
    untrained: bool = False,
    latency: bool = False,
    size: int = 224,
) -> None:
    """Write a trained model as ONNX or a torch program, checked against the original.

    Args:
        model: a run's folder, a saved model, the name of one that comes with saccade, or any
            model's name with --untrained
        to: onnx, torch (torch.export), aot (compiled ahead of time for this machine), or hub
        out: the file, or the hub's folder; beside the model if not given
        int8: also write an 8-bit ONNX file, and count both over the data
        data: images that 8-bit ranges and figures are measured on; the run's own if not given
        untrained: take a model by name, with fresh weights
        latency: time eager, compiled and exported side by side
        size: side of the images for latency
    """
    from saccade import export as ship

    known = [*ship.ENDINGS, "hub"]
    if to not in known:
        raise ValueError(
            f"export: no format {to!r}; did you mean {nearest(to, known)!r} ({', '.join(known)})?"
        )
    if int8 and to != "onnx":
        raise ValueError("export: int8 is for ONNX; leave --to at onnx")
    if untrained and (int8 or to == "hub"):
        why = "int8 measures ranges on images" if int8 else "the hub is for weights"
        raise ValueError(f"export: {why}; give a trained model")
    ready = _fresh(model) if untrained else _opened(model)
    if to == "hub":
        if latency:
            raise ValueError("export: latency is of a file that runs; leave --to at onnx")
        _shared(model, ready, out)
        return
    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    stem = "model" if Path(model).is_dir() else Path(model).stem
    out = out or (Path() if untrained else folder) / f"{stem}{ship.ENDINGS[to]}"
    raw = ship.prepared(ready.task)
    write: Any = {"onnx": ship.to_onnx, "torch": ship.to_torch, "aot": ship.to_aot}[to]
    path = _checked(lambda: write(raw, out, _about(ready)), to)
    try:
        gap = _checked(lambda: ship.apart(raw, ship.runner(path)), to)
    except RuntimeError:
        path.unlink()
        raise
    if not gap < ship.CLOSE:
        path.unlink()
        raise RuntimeError(f"export: the file differs from the model by {gap:.1e}; it was removed")
    megabytes = os.path.getsize(path) / 1e6
    _say(f"{path}: {megabytes:.1f} MB, any batch and size, within {gap:.0e} of the model")
    files = {to: path}
    if int8:
        files["int8"] = _quantised(ship, ready, path, model, data)
    if latency:
        _timed(ship, raw, files, size)
    if to == "onnx" and not untrained and ready.kind.verb:
        _say(f"next: python examples/{ready.kind.verb}_onnx.py {path} PICTURE")


def _checked(call: Callable[[], Any], to: str) -> Any:
    """What an exporter or a runtime stumbles over, in a sentence."""
    try:
        return call()
    except (ImportError, OSError):
        raise
    except Exception as error:  # each has its own kinds
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RuntimeError(f"export: this model does not go to {to} ({why})") from error


def _opened(model: str) -> Any:
    from saccade.engine import session
    from saccade.models import detectors, zoo
    from saccade.models.saved import located

    if located(model) is None:
        if model in zoo.VARIANTS or model in detectors.DETECTORS:
            raise ValueError(
                f"export: {model!r} comes without weights; give a run of 'saccade train', "
                f"or --untrained for its shape alone"
            )
        raise FileNotFoundError(f"export: no run or saved model {model!r}; check the path")
    return session.opened(model)


def _fresh(name: str) -> Any:
    """A model by its name in the zoo or in a paper's table of detectors, its classes numbered."""
    from saccade.engine import kinds
    from saccade.engine.session import Opened
    from saccade.models import detectors, zoo
    from saccade.models.saved import card
    from saccade.recipes import recipe as words

    if name not in zoo.VARIANTS and name not in detectors.DETECTORS:
        close = nearest(name, [*zoo.VARIANTS, *detectors.DETECTORS])
        raise ValueError(f"export: no model named {name!r}; did you mean {close!r}?")
    asked: Any
    if name in detectors.DETECTORS:
        net: Any = detectors.DETECTORS[name]()
        made = net.arguments
        asked = (
            words.Segment(dim=made["dim"], inner=made["inner"])
            if net.kind == "semantic_fpn"
            else words.RetinaNet(**made["settings"])
        )
        test = {}
    else:
        net, asked = cast(Any, zoo.build(name)), words.Classify()
        test = {"size": card(net)["input_size"][1]}
    kind = kinds.named(type(asked).__name__)
    classes = [f"class {i}" for i in range(int(net.num_classes))]
    task = kind.task(asked, net, tuple(classes), {}).eval()
    return Opened(kind, task, kind.tests(**test), classes, {}, asked)


def _shared(model: str, ready: Any, out: Path | None) -> None:
    """A folder for the hub, tried by pulling it back."""
    import timm
    import torch

    from saccade.engine import card
    from saccade.engine.run import Run
    from saccade.models import hub
    from saccade.models.saved import load

    net, place = load(model), Path(model)
    run = Run.open(place) if (place / "recipe.json").is_file() else None
    notes: dict[str, Any] = dict(cast(Any, net).notes)
    if "task" in notes:
        notes["task"] = _public(notes["task"])
    out = out or (place if place.is_dir() else place.parent) / "hub"
    if out.resolve() == place.resolve():
        raise ValueError("export: the hub's folder is one of its own; name another with --out")
    shown = {}
    if hub.of_timm(net):
        side = ready.test.size
        shown = {"input_size": (3, side, side), "crop_pct": ready.test.crop,
                 "interpolation": ready.test.interpolation}  # fmt: skip
    hub.write(net, out, card.written(net, notes, ready.kind.verb, run), shown, **notes)
    again = timm.create_model(f"local-dir:{out}", pretrained=True) if shown else load(out)
    wanted, got = net.state_dict(), again.state_dict()
    if wanted.keys() != got.keys() or not all(torch.equal(got[k], v) for k, v in wanted.items()):
        raise RuntimeError(f"export: what comes back from {str(out)!r} is not the model")
    _say(f"{out}: {', '.join(sorted(file.name for file in out.iterdir()))}; read back bit for bit")
    _say(f"next: name a licence in {out / 'README.md'}, then hf upload SOMEONE/NAME {out}")


def _public(words: dict[str, Any]) -> dict[str, Any]:
    """Without where files lie on this machine, such as a teacher's."""
    return {
        key: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
        for key, value in words.items()
    }


def _about(ready: Any) -> dict[str, Any]:
    """What a program that runs the file needs to know."""
    import dataclasses

    from saccade.models.saved import card
    from saccade.version import __version__

    about = card(ready.task.net)
    return {
        "model": about["architecture"],
        "for": ready.kind.verb,
        "classes": list(ready.classes),
        "mean": list(about["mean"]),
        "std": list(about["std"]),
        "test": dataclasses.asdict(ready.test),
        "task": _public(dataclasses.asdict(ready.asked)),
        "decode": ready.task.decoding(),
        "notes": ready.notes,
        "saccade": __version__,
    }


def _quantised(ship: Any, ready: Any, path: Path, model: str, data: str | None) -> Path:
    """The 8-bit file beside the other, and what it costs in the task's own figure."""
    from saccade.engine import make, session
    from saccade.engine.distributed import Group
    from saccade.engine.run import Run
    from saccade.recipes.recipe import Data

    if data is None and not (Path(model) / "recipe.json").is_file():
        raise ValueError("export: int8 measures ranges on images; which? --data FOLDER")
    splits = session.images_of(Run.open(model)) if data is None else ready.kind.find(data, Data())
    net = ready.task.net

    def batches(split: str, batch: int) -> Any:
        images = ready.kind.aligned(getattr(splits, split), ready.classes)
        loader = make.unaugmented(ready.kind, ready.test, images, net, Group(), batch)
        return (part for parts in loader.epoch(0) for part in parts)

    def some(count: int) -> Any:
        for i, part in enumerate(batches("train", 8)):
            if 8 * i >= count:
                return
            yield part.image.numpy()

    small = path.with_name(path.name.removesuffix(".onnx") + ".int8.onnx")
    ship.to_int8(path, small, some(CALIBRATION))
    best = ready.task.best
    scores = {}
    for name, file in (("fp32", path), ("int8", small)):
        scores[name] = ship.figures(ready.task, ship.runner(file), batches("val", 32))
    told = ", ".join(f"{name} {figures[best]:.2f}" for name, figures in scores.items())
    change = scores["int8"][best] - scores["fp32"][best]
    _say(f"{small}: {os.path.getsize(small) / 1e6:.1f} MB; {best}: {told} ({change:+.2f})")
    return small


def _timed(ship: Any, raw: Any, files: dict[str, Path], size: int) -> None:
    """Side by side, interleaved, as ratios to eager."""
    import torch

    from saccade.bench.clock import interleave

    image = torch.randn(1, 3, size, size)
    pixels = image.numpy()
    compiled = torch.compile(raw)

    def quietly(call: Any) -> Any:
        with torch.no_grad():
            return call(image)

    calls: dict[str, Any] = {
        "eager": lambda: quietly(raw),
        "compiled": lambda: quietly(compiled),
        **{
            name: (lambda run: lambda: run(pixels))(
                ship.runner(path, threads=torch.get_num_threads())
            )
            for name, path in files.items()
        },
    }
    table = Table("one image", "ms", "times eager", box=None, pad_edge=False)
    found = interleave(calls)
    for name, timing in found.items():
        ratio = found["eager"].best / timing.best
        table.add_row(name, f"{1e3 * timing.best:.1f}", f"{ratio:.2f}x")
    console.print(table)


def _say(sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
