"""The command line: `saccade list`, `show`, `paper`, `view`, `bench`, `tour`.

Each command is a function of this file; jsonargparse makes its arguments from the signature.
"""

import inspect
import itertools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jsonargparse import auto_cli
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from saccade import count
from saccade.models import zoo
from saccade.models.backbone import Stage
from saccade.models.saved import load
from saccade.models.zoo import Classifier

console = Console()


def list_models(pattern: str = "*") -> None:
    """List the models whose name matches, with their size and cost.

    Args:
        pattern: such as "linglo_b*"
    """
    names = zoo.names(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}; 'saccade list' shows all")
    table = Table("model", box=None, pad_edge=False)
    for column in ("params M", "MACs G", "image", "widths"):
        table.add_column(column, justify="right")
    for name in names:
        model = _on_meta(name)
        side = model.default_cfg["input_size"][1]
        size, cost = count.params(model) / 1e6, count.macs(model, (side, side)) / 1e9
        widths = " ".join(map(str, model.backbone.widths))
        table.add_row(name, f"{size:.2f}", f"{cost:.2f}", str(side), widths)
    console.print(table)


def show(name: str, size: int | None = None) -> None:
    """Show one model: stages, widths, parameters, multiply-adds, receptive field.

    Args:
        name: a model ('saccade list' shows all)
        size: image side in pixels; the model's own if not given
    """
    from saccade.ops.where import backends

    model = _on_meta(name)
    side = size or model.default_cfg["input_size"][1]
    model.backbone.door.check((1, 3, side, side))
    fields = count.receptive_fields(name, side)
    shapes = [m.shape for m in model.backbone(torch.empty(1, 3, side, side, device="meta"))]
    tree = Tree(
        f"[bold]{name}[/]  {count.params(model):,} parameters, "
        f"{count.macs(model, (side, side)) / 1e9:.3f} GMACs at {side} x {side}"
    )
    stem = count.params(model.backbone.stem)
    if stem:
        tree.add(f"stem  {stem:,} parameters")
    for i, (part, shape) in enumerate(zip(model.backbone.stages, shapes, strict=True)):
        stage = cast(Stage, part)
        _, C, H, W = shape
        branch = tree.add(
            f"[bold]stage {i + 1}[/]  {C} x {H} x {W}, stride {model.backbone.strides[i]}, "
            f"{count.params(stage):,} params, sees {_pixels(fields[i], side)}"
        )
        way, *blocks = (_kind(part) for part in (stage.down, *stage.blocks))
        branch.add(f"down: {way}")
        for kind, times in _runs(blocks):
            branch.add(f"{times} x {kind}")
    tree.add(f"head  {model.num_features} -> {model.num_classes}, {count.params(model.head):,}")
    console.print(tree)
    before = count.params(model)
    after = count.params(model.eval().fuse())
    if after != before:
        console.print(f"fused for deployment: {after:,} parameters")
    console.print(backends()[0], highlight=False, soft_wrap=True)


def paper(family: str) -> None:
    """Print what a paper says beside what the code counts and what a run reached.

    Args:
        family: linglo
    """
    if family not in zoo.FAMILIES:
        known = ", ".join(zoo.FAMILIES)
        raise ValueError(f"no paper named {family!r}; there is {known}")
    table = Table(title=f"{family}: paper | code | run", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("what", min_width=14)
    for column in ("paper", "code", "run"):
        table.add_column(column, justify="right", no_wrap=True)
    reasons: dict[str, int] = {}
    rows = [
        (claim, name)
        for name in zoo.names()
        if zoo.family_of(name) == family
        for claim in zoo.claims(name)
    ]
    where = ""
    for claim, name in sorted(rows, key=lambda row: (row[0].where, row[0].what)):
        measured = count.measure(name, claim)
        code, run = "", ""
        if measured is None:
            run = "not run"
        elif claim.differs:
            mark = reasons.setdefault(claim.differs, len(reasons) + 1)
            code = f"[yellow]{_exact(measured)} \\[{mark}][/]"
        else:
            code = f"[green]{_exact(measured)} =[/]"
        if claim.where != where:
            where = claim.where
            table.add_section()
            table.add_row(f"[bold]{where}[/]")
        table.add_row(name, claim.what, claim.said, code, run)
    console.print(table)
    for reason, mark in reasons.items():
        console.print(f"\\[{mark}] differs: {reason}")


def view(
    image: Path,
    model: str = "linglo_b0",
    out: Path = Path("view.png"),
    size: int = 224,
    at: tuple[int, int] | None = None,
) -> None:
    """Draw where each head of each stage looks.

    Args:
        image: a picture file
        model: a model's name, or a file that saccade saved
        out: the PNG to write
        size: short side that the picture is resized to
        at: for sasa, the pixel (row, column) that looks; the middle one if not given
    """
    from saccade import view as views
    from saccade.data.picture import read, to_input

    net = load(model) if Path(model).is_file() else cast(Classifier, zoo.build(model).eval())
    photo = read(image, size)
    x = to_input(photo, net.default_cfg)
    family = zoo.family_of(net.default_cfg["architecture"])
    if family == "sasa":
        pixel = (photo.shape[0] // 2, photo.shape[1] // 2) if at is None else at
        maps, what = views.sasa_attention(net, x, pixel), f"attention of pixel {pixel}"
    elif family == "qna":
        summed = views.qna_summed_attention(net, x)
        maps = {name: m.reshape(-1, *m.shape[2:]) for name, m in summed.items()}
        what = "attention summed by pixel, query after query"
    else:
        maps, what = views.linglo_saliency(net, x), "saliency"
    note = "" if Path(model).is_file() else ", untrained"
    title = f"{Path(model).name}{note}: {what}, last such block of each stage"
    views.picture(photo, views.last_of_each_stage(maps), out, title)
    console.print(f"drawn: {out}")


def bench(
    names: list[str],
    size: int | None = None,
    batch: int | None = None,
    peers: bool = False,
    at: str | None = None,
    layer: bool = False,
    window: int | None = None,
    queries: int | None = None,
    stride: int | None = None,
    border: str | None = None,
    train: bool = False,
    compiled: bool = False,
    threads: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["cpu", "cuda"] = "cpu",
    against: str | None = None,
    rounds: int = 10,
    seconds: float = 60.0,
    json: Path | None = None,
    plot: Path | None = None,
    where: bool = False,
) -> None:
    """Measure an operator beside its peers, or models beside each other, in turns in one run.

    `saccade bench sasa --at 4,56,64,8 --train`, `saccade bench qna convolved conv --layer`,
    `saccade bench linglo_b0 resnet18`, `saccade bench qna_t --peers`. Ctrl-C shows what is known.

    Args:
        names: models of saccade or timm; or sasa, qna or linglo, and which of its peers (or all)
        size: image side for models, 224 if not given
        batch: images at once for models, 1 if not given
        peers: add the models of timm that ours are compared with
        at: batch,side,channels,heads for operators, 4,56,64,8 if not given; or 4,56x40,64,8
        layer: the operator's layer, with its projections
        window: window side of sasa and qna
        queries: learned queries of qna
        stride: of qna's windows
        border: zero or mask, for sasa
        train: forward and backward instead of a forward pass
        compiled: through torch.compile
        threads: CPU threads
        dtype: of inputs and weights
        device: to run on
        against: what ratios refer to, the first if not given
        rounds: turns at most
        seconds: no new round of turns after so long
        json: append a JSON line per row, stamped with versions
        plot: draw into this PNG
        where: say which backend computes window attention here and why, and nothing else
    """
    from saccade import bench as benches
    from saccade.ops.where import backends

    if where:
        console.print("\n".join(backends()), highlight=False, soft_wrap=True)
        return
    of_models = {"size": size, "batch": batch, "peers": peers or None}
    of_operators = {
        "layer": layer or None, "window": window, "queries": queries, "stride": stride,
        "border": border,
    }  # fmt: skip
    how = {"train": train, "dtype": getattr(torch, dtype), "device": device}
    least = {"threads": threads, "rounds": rounds, "size": size or 1, "batch": batch or 1}
    _check_bench(names, least, device, json, plot)
    torch.set_num_threads(threads)
    if names[0] in benches.operators.OPERATORS:
        word, *chosen = names
        _refuse(of_models, "models", f"the operator {word}")
        shape = benches.Shape.read(at or "4,56,64,8")
        found = benches.operators.peers(word, chosen, shape, **how, **of_operators)
        given = [f"{key} {value}" for key, value in of_operators.items() if value is not None]
        what = ", ".join([word, str(shape), *given]).replace("layer True", "layer")
    else:
        _refuse({"at": at, **of_operators}, "sasa, qna and linglo", "models")
        size, batch = size or 224, batch or 1
        names = benches.models.with_peers(names) if peers else names
        found = benches.models.peers(names, size, batch, **how)
        what = f"{batch} x {size} x {size} pixels"
    kind = "forward and backward" if train else "forward"
    title = f"{what}: {kind}, {dtype}, {threads} thread(s)" + ", compiled" * compiled
    with _progress() as watch:
        run = benches.compare(
            found, against, train=train, compiled=compiled, rounds=rounds, seconds=seconds,
            watch=watch, dtype=how["dtype"], device=device,
        )  # fmt: skip
    console.print(f"[bold]{title}[/]", benches.table(run), sep="\n", highlight=False)
    console.print(*benches.notes(run), sep="\n", highlight=False, soft_wrap=True)
    if json is not None:
        benches.append_json(run, json, what=title)
    if plot is not None and run.rows:
        benches.draw(run, plot, title)
        console.print(f"drawn: {plot}")


def _check_bench(
    names: list[str], least: dict[str, int], device: str, json: Path | None, plot: Path | None
) -> None:
    """Say at once what would fail after minutes."""
    if not names:
        raise ValueError("bench: name some models, or an operator (sasa, qna, linglo)")
    for key, value in least.items():
        if value < 1:
            raise ValueError(f"bench: --{key} must be at least 1, got {value}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("bench: there is no CUDA device here; leave --device out")
    for path in (json, plot):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"bench: there is no folder {str(path.parent)!r} to write into")
    if plot is not None and find_spec("matplotlib") is None:
        raise ImportError("bench: drawing needs matplotlib; pip install 'saccade[viz]'")


@contextmanager
def _progress() -> Generator[Callable[[str, float], None]]:
    """A bar that is redrawn between calls only: a thread of its own would be measured too."""
    bar = Progress(
        BarColumn(), "{task.description}", console=console, transient=True, auto_refresh=False,
        disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=1)
        yield lambda name, done: bar.update(task, description=name, completed=done, refresh=True)


def _refuse(options: dict[str, Any], owner: str, asked: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise ValueError(f"bench: --{key} is for {owner}, got it with {asked}")


def tour() -> None:
    """Build LinGlo-b0, hold it to its paper, and look at a photograph: a first minute."""
    import matplotlib.cbook

    photo = Path(str(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
    console.rule("LinGlo-b0")
    show("linglo_b0")
    console.rule("the paper's claims")
    paper("linglo")
    console.rule("a photograph through it")
    view(photo, out=Path("tour.png"))
    console.print("next: saccade list | saccade show linglo_nano | saccade view YOUR.jpg")


# -- words for what is shown ------------------------------------------------------------------


def _on_meta(name: str) -> Classifier:
    return cast(Classifier, zoo.build(name, device="meta"))


def _exact(measured: object) -> str:
    """A count in full; a list of widths needs no repeating."""
    return f"{measured:,}" if isinstance(measured, int) else ""


def _kind(module: torch.nn.Module) -> str:
    mix = getattr(module, "mix", None)
    own = type(module).__name__
    if own == "Sequential":
        return " + ".join(_kind(part) for part in module.children())
    return f"{own}({type(mix).__name__})" if mix is not None else own


def _runs(kinds: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + 1)
        else:
            runs.append((kind, 1))
    return runs


def _pixels(field: int, side: int) -> str:
    return "the whole image" if field >= side else f"{field} px"


COMMANDS: dict[str, Any] = {
    "list": list_models, "show": show, "paper": paper, "view": view, "bench": bench, "tour": tour,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    try:
        words = _bare(sys.argv[1:] if arguments is None else arguments)
        auto_cli(COMMANDS, args=words, as_positional=True, prog="saccade")
    except (ValueError, FileNotFoundError, RuntimeError, ImportError) as error:
        console.print("[red]saccade:[/]", Text(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)


def _bare(arguments: list[str]) -> list[str]:
    """Plain words where jsonargparse wants syntax: `list "linglo*"`, `bench sasa conv --train`."""
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments)
    command, *rest = _flagged(arguments)
    if command not in ("list", "bench"):
        return [command, *rest]
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))
    rest = rest[len(names) :]
    if command == "bench":
        asks = {"-h", "--help"} & set(rest)
        return [command, *([] if asks else [f"[{','.join(names)}]"]), *rest]
    return [command, *(["--pattern", *names] if names else []), *rest]


def _flagged(arguments: list[str]) -> list[str]:
    """A switch that stands alone is on."""
    parameters = inspect.signature(COMMANDS[arguments[0]]).parameters
    switches = {f"--{name}" for name, p in parameters.items() if p.annotation is bool}
    words = []
    for word, after in itertools.zip_longest(arguments, arguments[1:], fillvalue="--"):
        words += [word, "true"] if word in switches and after.startswith("-") else [word]
    return words
