"""`export`: a trained model as a file that runs without saccade."""

import math
import os
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial as bind
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

from saccade.cli.command import File, Folder, ModelName, Side
from saccade.cli.console import note, say, show, show_json, table
from saccade.files import inside
from saccade.spelling import nearest

CALIBRATION = 128  # images that 8-bit ranges are measured on
ROUNDS = 100  # of timing, at most
TURNS = 20  # of timing eight bits, at most
PAYS = 1.1  # times as fast as fp32, from which on eight bits are worth it
WORTH = 0.95  # of the time that the smallest file takes, for a larger one


def export(
    model: ModelName,
    *,
    to: Literal["onnx", "torch", "aot", "hub"] = "onnx",
    out: File | None = None,
    kernels: bool = False,
    plain: bool = False,
    int8: bool = False,
    data: Folder | None = None,
    untrained: bool = False,
    latency: bool = False,
    size: Side = 224,
    json: bool = False,
) -> None:
    """Write a trained model as ONNX or a torch program, checked against the original.

    Examples:
        saccade export runs/quick
        saccade export runs/quick --to torch --latency
        saccade export runs/quick --kernels --latency
        saccade export runs/quick --to aot --plain
        saccade export runs/quick --int8
        saccade export linglo_b0 --untrained

    Args:
        model: a run's folder, a saved model, the name of one that comes with saccade, or any
            model's name with --untrained
        to: the format: ONNX, torch.export, compiled ahead of time for this machine, or a folder
            for the Hugging Face hub
        out: the file, or the hub's folder; beside the model if left out
        kernels: ONNX with saccade's operators: faster, but it runs only in ONNX Runtime with the
            library of kernels (`saccade.kernels()`); torch and aot have them in any case
        plain: torch and aot in torch's own operators, for machines without saccade
        int8: also write an 8-bit ONNX file, and evaluate both files on the data
        data: images that 8-bit ranges and figures are measured on; the run's own if left out
        untrained: take a model by name, with fresh weights
        latency: time eager, compiled and exported side by side
        size: side of the images for latency
        json: print JSON
    """
    from saccade import export as ship
    from saccade.models.saved import located
    from saccade.ops import native

    tell = note if json else say
    if int8 and to != "onnx":
        raise ValueError("export: int8 is for ONNX; leave --to at onnx")
    if plain and (kernels or to in ("onnx", "hub")):
        why = "--kernels asks for the contrary" if kernels else "it is for --to torch and aot"
        raise ValueError(f"export: {why}; leave out --plain")
    if kernels and not native.available():
        raise RuntimeError(f"export: there are no kernels here, {native.find().why}")
    if kernels and (int8 or to == "hub"):
        why = "int8 is for ONNX's own operators" if int8 else "the hub is for weights"
        raise ValueError(f"export: {why}; leave out --kernels")
    if untrained and (int8 or to == "hub"):
        why = "int8 measures ranges on images" if int8 else "the hub is for weights"
        raise ValueError(f"export: {why}; give a trained model")
    kernels = kernels or (to in ("torch", "aot") and not plain and native.available())
    if to == "hub":
        if latency:
            raise ValueError("export: latency is of a file that runs; leave --to at onnx")
        folder, sentences = _write_hub_folder(model, _open_model(model), out)
        for sentence in sentences:
            tell(sentence)
        if json:
            show_json({"to": to, "files": {"hub": str(folder)}})
        return
    if int8 and data is None and not (Path(model) / "recipe.json").is_file():
        raise ValueError("export: int8 measures ranges on images; which? --data FOLDER")
    source = None if untrained else located(model)
    out = out or _beside(model, source, ship.ENDINGS[to])
    _refuse(out, to, source)
    small = out.with_name(out.name.removesuffix(".onnx") + ".int8.onnx")
    if int8:
        _refuse(small, to, source)
    ready = _fresh(model) if untrained else _open_model(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    raw, whole = ship.prepared(ready.task), ship.Raw(ready.task)
    write: Any = {"onnx": ship.to_onnx, "torch": ship.to_torch, "aot": ship.to_aot}[to]
    with ship.partial(out) as part:
        _checked(lambda: write(raw, part, _about(ready), kernels), to)
        gap = _checked(lambda: ship.apart(whole, ship.runner(part)), to)
        if not gap < ship.CLOSE:
            other = "torch" if to == "onnx" else "onnx"
            raise RuntimeError(
                f"export: what was written differs from the model by {gap:.1e}, so it is thrown "
                f"away; try --to {other}"
            )
    megabytes = os.path.getsize(out) / 1e6
    tell(f"{out}: {megabytes:.1f} MB, any batch and size, within {gap:.0e} of the model")
    if kernels:
        tell(_needs(to))
    files: dict[str, Path] = {to: out}
    facts: dict[str, Any] = {"to": to, "gap": gap}
    if int8:
        files["int8"], facts["figures"], facts["int8_times_fp32"], sentence = _quantised(
            ship, ready, out, small, model, data
        )
        tell(sentence)
    if latency:
        facts["latency"], grid = _timed(ship, raw, files, size)
        if not json:
            show(grid)
    if json:
        show_json({**facts, "files": {name: str(path) for name, path in files.items()}})
    if to == "onnx" and not (untrained or kernels) and ready.definition.command:
        note(f"next: {_next(ready.definition.command, out)}")


def _needs(to: str) -> str:
    """What a file with our operators needs where it runs."""
    from saccade import kernels

    if to == "onnx":
        return f"it calls saccade's operators: register_custom_ops_library({kernels()!r}) first"
    return "it may call saccade's operators: import saccade before loading it, or write it --plain"


def _beside(model: str, source: Path | None, ending: str) -> Path:
    """Where the file goes without --out: beside the model.

    For a model that comes with the package, or an untrained one, that is the working directory.
    """
    place = Path(model)
    if source is not None and place.is_dir():
        return place / f"model{ending}"
    if place.is_file():
        return place.with_name(place.stem + ending)
    return Path(place.name.partition(".")[0] + ending)


def _refuse(out: Path, to: str, source: Path | None) -> None:
    """Refuse a place where the file cannot be written, or that holds something else."""
    from saccade.export import ENDINGS

    ending = ENDINGS[to]
    if out.is_dir():
        raise ValueError(
            f"export: {str(out)!r} is a folder; name a file in it, such as "
            f"{str(out / ('model' + ending))!r}"
        )
    if not out.name.endswith(ending) or (to == "torch" and out.name.endswith(ENDINGS["aot"])):
        better = out.with_name(out.name.partition(".")[0] + ending)
        raise ValueError(
            f"export: --to {to} writes a file that ends in {ending}, got {str(out)!r}; "
            f"try --out {better}"
        )
    if source is not None and out.resolve() == source.resolve():
        raise ValueError(f"export: {str(out)!r} is the model itself; name another with --out")
    there = next(folder for folder in out.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(
            f"export: nothing can be written into {str(there)!r}; name another place with --out"
        )


def _next(verb: str, path: Path) -> str:
    """A command that uses the file, by the example program of a checkout or of an installation."""
    from importlib.metadata import PackageNotFoundError, files

    name = f"{verb}_onnx.py"
    places = [Path(__file__).parents[2] / "examples" / name]
    with suppress(PackageNotFoundError):
        places += [Path(str(file.locate())) for file in files("saccade") or () if file.name == name]
    for place in places:
        if place.is_file():
            return shlex.join(["python", str(place.resolve()), str(path), "PICTURE"])
    return "onnxruntime runs it, and its metadata entry 'saccade' tells how it is used"


def _checked(call: Callable[[], Any], to: str) -> Any:
    """The result of a call; what an exporter or a runtime raises becomes one sentence."""
    try:
        return call()
    except (ImportError, OSError):
        raise
    except Exception as error:  # each has its own kinds
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RuntimeError(f"export: this model does not go to {to} ({why})") from error


def _open_model(model: str) -> Any:
    from saccade.engine import session
    from saccade.models import detectors, zoo
    from saccade.models.saved import located

    if located(model) is None:
        if model in zoo.VARIANTS or model in detectors.DETECTORS:
            raise ValueError(
                f"export: {model!r} comes without weights; give a run of 'saccade train', "
                f"or --untrained for its shape alone"
            )
        raise FileNotFoundError(
            f"export: no run or saved model {model!r}; {_model_for_export(model)}"
        )
    return session.open_model(model)


def _model_for_export(name: str) -> str:
    """A hint for a name that is no model's: the nearest trained model, else the nearest of all."""
    from difflib import get_close_matches

    from saccade.models import detectors, zoo
    from saccade.weights import NAMES

    trained = [*(known.partition(".")[0] for known in NAMES), *NAMES]
    for known, more in ((trained, ""), ([*zoo.VARIANTS, *detectors.DETECTORS], " --untrained")):
        if get_close_matches(name, known, n=1, cutoff=0.8):
            return f"did you mean '{nearest(name, known)}{more}'?"
    return "check the path" + (f", or take one of {', '.join(NAMES)}" if NAMES else "")


def _fresh(name: str) -> Any:
    """A model by its name in the zoo or in a paper's table of detectors, its classes numbered."""
    from saccade.engine import session
    from saccade.models import detectors, zoo

    ready = session.untrained(name)
    if ready is None:
        close = nearest(name, [*zoo.VARIANTS, *detectors.DETECTORS])
        raise ValueError(f"export: no model named {name!r}; did you mean {close!r}?")
    return ready


def _write_hub_folder(model: str, ready: Any, out: Path | None) -> tuple[Path, list[str]]:
    """Write a folder for the hub and read it back; gives the folder, and sentences about it."""
    import timm
    import torch

    from saccade.engine.run import Run
    from saccade.models import hub
    from saccade.models.saved import load
    from saccade.report import model_card

    net, place = load(model), Path(model)
    run = Run.open(place) if (place / "recipe.json").is_file() else None
    notes: dict[str, Any] = dict(cast(Any, net).notes)
    if "task" in notes:
        notes["task"] = _public(notes["task"])
    if out is None:
        out = (place if place.is_dir() else place.parent) / "hub"
        if not inside(out, out.parent):
            raise ValueError(
                f"export: {str(out)!r} is a link to elsewhere; remove it, or name a folder with "
                f"--out"
            )
    if out.resolve() == place.resolve():
        raise ValueError("export: the hub's folder is one of its own; name another with --out")
    input_config = {}
    if hub.of_timm(net):
        side = ready.test.size
        input_config = {"input_size": (3, side, side), "crop_pct": ready.test.crop,
                 "interpolation": ready.test.interpolation}  # fmt: skip
    hub.write(
        net, out, model_card.card_text(net, notes, ready.definition, run), input_config, **notes
    )
    again = timm.create_model(f"local-dir:{out}", pretrained=True) if input_config else load(out)
    expected, got = net.state_dict(), again.state_dict()
    if expected.keys() != got.keys() or not all(
        torch.equal(got[k], v) for k, v in expected.items()
    ):
        raise RuntimeError(f"export: what comes back from {str(out)!r} is not the model")
    names = ", ".join(sorted(file.name for file in out.iterdir()))
    return out, [
        f"{out}: {names}; read back bit for bit",
        f"next: name a licence in {out / 'README.md'}, then hf upload SOMEONE/NAME {out}",
    ]


def _public(words: dict[str, Any]) -> dict[str, Any]:
    """The settings without this machine's paths, such as that of a teacher."""
    return {
        key: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
        for key, value in words.items()
    }


def _about(ready: Any) -> dict[str, Any]:
    """What a program that runs the file needs to know."""
    import dataclasses

    from saccade.models.describe import timm_config
    from saccade.version import __version__

    about = timm_config(ready.task.net)
    return {
        "model": about["architecture"],
        "for": ready.definition.command,
        "classes": list(ready.classes),
        "mean": list(about["mean"]),
        "std": list(about["std"]),
        "test": dataclasses.asdict(ready.test),
        "task": _public(dataclasses.asdict(ready.settings)),
        "decode": ready.task.decoding(),
        "notes": ready.notes,
        "saccade": __version__,
    }


def _quantised(
    ship: Any, ready: Any, path: Path, small: Path, model: str, data: str | None
) -> tuple[Path, dict[str, Any], float, str]:
    """The 8-bit file beside the other; the task's own figure with both, and the ratio of speeds."""
    from saccade.engine import make, session
    from saccade.engine.distributed import Group
    from saccade.engine.run import Run
    from saccade.recipes.recipe import Data

    splits = (
        session.images_of(Run.open(model))
        if data is None
        else ready.definition.find(data, Data(), 0)
    )
    net = ready.task.net

    def batches(split: str, batch: int) -> Any:
        images = ready.definition.align(getattr(splits, split), ready.classes)
        loader = make.unaugmented(ready.definition, ready.test, images, net, Group(), batch)
        return (part for parts in loader.epoch(0) for part in parts)

    def some(count: int) -> Any:
        for i, part in enumerate(batches("train", 8)):
            if 8 * i >= count:
                return
            yield part.image.numpy()

    image = next(some(1))[:1]
    pace = _smallest_or_fastest(ship, path, small, bind(some, CALIBRATION), image)
    best = ready.task.best
    scores, answers = {}, {}
    for name, file in (("fp32", path), ("int8", small)):
        run = _noting_answers(ship.runner(file), answers.setdefault(name, []))
        scores[name] = ship.figures(ready.task, run, batches("val", 32))
    summary = ", ".join(f"{name} {figures[best]:.2f}" for name, figures in scores.items())
    summary += f" ({scores['int8'][best] - scores['fp32'][best]:+.2f})"
    if answers["fp32"]:
        same = [a == b for a, b in zip(answers["fp32"], answers["int8"], strict=True)]
        summary += f"; same answer on {100 * sum(same) / len(same):.1f}% of images"
    sentence = f"{small}: {os.path.getsize(small) / 1e6:.1f} MB; {best}: {summary}; "
    side = "x".join(map(str, image.shape[2:]))
    sentence += f"{pace:.2f}x as fast as fp32 (one {side} image, one thread)"
    if pace < PAYS:
        sentence += (
            ": most products of this model are narrow, and turning their numbers into eight bits "
            "and back takes what eight bits save; for speed, keep the fp32 file"
        )
    counts = {name: figures[best] for name, figures in scores.items()}
    return small, counts, pace, sentence


def _smallest_or_fastest(ship: Any, path: Path, small: Path, images: Any, image: Any) -> float:
    """Write the 8-bit file and say how many times as fast as the other it is.

    All products in eight bits make the smallest file. Where some are wide enough to gain and the
    rest loses more than they gain, only those are.
    """
    with TemporaryDirectory(prefix="saccade-") as place:
        parts = {"all": []}
        if wide := ship.wide_products(path):
            parts["wide"] = wide
        files = {"fp32": path}
        for name, nodes in parts.items():
            file = files[name] = Path(place) / f"{name}.onnx"
            _checked(bind(ship.to_int8, path, file, images(), nodes), "int8")
        seconds = _seconds(ship, files, image)
        name = "wide" if seconds.get("wide", math.inf) < WORTH * seconds["all"] else "all"
        with ship.partial(small) as part:
            shutil.copyfile(files[name], part)
    return seconds["fp32"] / seconds[name]


def _seconds(ship: Any, files: dict[str, Path], image: Any) -> dict[str, float]:
    """CPU time of one thread for an image, in turns."""
    from saccade.bench.clock import interleave

    runs = {name: ship.runner(file, threads=1) for name, file in files.items()}
    timings = interleave({name: bind(run, image) for name, run in runs.items()}, TURNS)
    return {name: timing.cpu for name, timing in timings.items()}


def _noting_answers(run: Any, answers: list[int]) -> Any:
    """The runner, which also collects each image's likeliest class, for classifiers."""

    def call(image: Any) -> Any:
        outputs = run(image)
        if "logits" in outputs and outputs["logits"].ndim == 2:
            answers.extend(outputs["logits"].argmax(1).tolist())
        return outputs

    return call


def _timed(ship: Any, raw: Any, files: dict[str, Path], size: int) -> tuple[dict[str, float], Any]:
    """Time eager, compiled and the files in turns, with ratios to eager.

    It is the CPU time of one thread, so that other programs on the machine do not count.
    """
    import torch

    from saccade.bench.clock import interleave

    pixels = torch.randn(1, 3, size, size).numpy()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = {"eager": ship.runner_of(raw)}
        try:
            runs["compiled"] = ship.compiled(raw, pixels)
        except Exception as error:  # no C++ compiler, or any other fault of the compilation
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            note(f"compiled is left out, for torch.compile does not work here ({why})")
        for name, path in files.items():
            runs[name] = ship.runner(path, threads=1)
        timings = interleave({name: bind(run, pixels) for name, run in runs.items()}, ROUNDS)
    finally:
        torch.set_num_threads(threads)
    head = f"one {size} x {size} image, one thread, best of {timings['eager'].times}"
    grid = table(head, "CPU ms", "times eager", right=("CPU ms", "times eager"))
    for name, timing in timings.items():
        ratio = timings["eager"].cpu / timing.cpu
        grid.add_row(name, f"{1e3 * timing.cpu:.1f}", f"{ratio:.2f}x")
    return {name: timing.cpu for name, timing in timings.items()}, grid
