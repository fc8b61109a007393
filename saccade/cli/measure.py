"""The command that measures: `saccade bench`."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from saccade.cli.command import Count, File, Side, Value
from saccade.cli.console import console, note, say, show, show_json


def bench(
    names: Annotated[list[str], Value("NAMES", "models")] = [],  # noqa: B006  (never changed)
    *,
    size: Side | None = None,
    batch: Count | None = None,
    peers: bool = False,
    deploy: bool = False,
    over: Annotated[str, Value("SIDE,SIDE,...")] | None = None,
    at: Annotated[str, Value("B,SIDE,C,HEADS")] | None = None,
    layer: bool = False,
    window: int | None = None,
    queries: int | None = None,
    stride: int | None = None,
    border: Literal["zero", "mask"] | None = None,
    train: bool = False,
    compiled: bool = False,
    threads: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["cpu", "cuda"] = "cpu",
    against: Annotated[str, Value("NAME", "models")] | None = None,
    rounds: int = 10,
    seconds: float = 60.0,
    json: Annotated[str, Value("FILE", "files", bare="-")] | None = None,
    plot: File | None = None,
    where: bool = False,
    self_test: bool = False,
) -> None:
    """Measure an operator and its peers, or several models, in turns in one process.

    Ctrl-C shows what is known so far.

    Examples:
        saccade bench linglo_b0 resnet18
        saccade bench qna_t --peers
        saccade bench linglo_b0 --deploy
        saccade bench linglo_b0 linglo_b0_dot --over 224,320,448 --plot fig4.png
        saccade bench sasa --at 4,56,64,8 --train
        saccade bench qna convolved conv --layer
        saccade bench --where
        saccade bench --self-test

    Args:
        names: models of saccade or timm; or sasa, qna or linglo, and which of its peers (or all)
        size: image side for models, 224 if left out
        batch: images at once for models, 1 if left out
        peers: add the models of timm that ours are compared with
        deploy: each model in all ways to run it here: eager, compiled, ONNX Runtime with our
            operators and without, int8, OpenVINO where installed, bf16
        over: several image sides for models, one after the other; --plot draws curves over them
        at: shape for operators, 4,56,64,8 if left out; the side may be 56x40
        layer: the operator's layer, with its projections
        window: window side of sasa and qna
        queries: learned queries of qna
        stride: of qna's windows
        border: what sasa sees beyond the image
        train: forward and backward instead of a forward pass
        compiled: through torch.compile
        threads: CPU threads
        dtype: of inputs and weights
        device: to run on
        against: what ratios refer to, the first if left out
        rounds: turns at most
        seconds: no new round of turns after so long
        json: print JSON lines instead of the table, or append them to a file
        plot: draw into this PNG
        where: say which backend computes window attention here and why, and nothing else
        self_test: check every kernel of this machine against float64 and time it beside
            FlexAttention and SDPA; on a GPU, please send what it prints
    """
    import torch

    from saccade import bench as benches
    from saccade.ops.where import backends

    if where:
        say("\n".join(backends()))
        return
    if self_test:
        _self_test(rounds, seconds)
        return
    sides = None if over is None else _sides(over)
    of_models = {
        "size": size, "batch": batch, "peers": peers or None, "over": over,
        "deploy": deploy or None,
    }  # fmt: skip
    of_operators = {
        "layer": layer or None, "window": window, "queries": queries, "stride": stride,
        "border": border,
    }  # fmt: skip
    how: dict[str, Any] = {"train": train, "dtype": getattr(torch, dtype), "device": device}
    if sides and size is not None:
        raise ValueError("bench: --over has the sides; leave --size out")
    least = {"threads": threads, "rounds": rounds, "size": size or 1, "batch": batch or 1}
    least |= {"over": min(sides)} if sides else {}
    file = None if json in (None, "-") else Path(json)
    _check_bench(names, least, device, file, plot)
    torch.set_num_threads(threads)
    if names[0] in benches.operators.OPERATORS:
        word, *peer_names = names
        _refuse(of_models, "models", f"the operator {word}")
        shape = benches.Shape.read(at or "4,56,64,8")
        compared = {0: benches.operators.peers(word, peer_names, shape, **how, **of_operators)}
        settings = [f"{key} {value}" for key, value in of_operators.items() if value is not None]
        whats = {0: ", ".join([word, str(shape), *settings]).replace("layer True", "layer")}
    else:
        _refuse({"at": at, **of_operators}, "sasa, qna and linglo", "models")
        batch = batch or 1
        names = benches.models.with_peers(names) if peers else names
        if deploy:
            others = {"train": train, "compiled": compiled, "against": against, "over": over}
            _refuse({k: v or None for k, v in others.items()}, "one way to run", "--deploy")
            _deployed(names, size or 224, batch, threads, rounds, json, file, plot)
            return
        compared = {
            side: benches.models.peers(names, side, batch, **how)
            for side in sides or (size or 224,)
        }
        whats = {side: f"{batch} x {side} x {side} pixels" for side in compared}
    kind = "forward and backward" if train else "forward"
    setting = f"{kind}, {dtype}, {threads} thread(s)" + ", compiled" * compiled
    runs = {}
    for side, of_side in compared.items():
        title = f"{whats[side]}: {setting}"
        with _progress() as watch:
            run = runs[side] = benches.compare(
                of_side, against, train=train, compiled=compiled, rounds=rounds, seconds=seconds,
                watch=watch, dtype=how["dtype"], device=device,
            )  # fmt: skip
        if json == "-":
            for row in benches.lines(run, what=title):
                show_json(row)
        else:
            say(title, "bold")
            show(benches.table(run))
        for sentence in benches.notes(run):
            (note if json == "-" else say)(sentence)
        if file is not None:
            benches.append_json(run, file, what=title)
        if run.interrupted:
            break
    if plot is not None and any(run.rows for run in runs.values()):
        if sides:
            benches.draw_over(runs, plot, f"batches of {batch}: {setting}")
        else:
            benches.draw(run, plot, title)
        note(f"drawn: {plot}")


def _self_test(rounds: int, seconds: float) -> None:
    import torch
    from rich.table import Table

    from saccade import bench as benches
    from saccade.bench import selftest
    from saccade.ops.where import backends

    say("\n".join(f"{key}: {value}" for key, value in benches.stamp().items()))
    say("\n".join(backends()))
    wrong = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        table = Table("operator", "kernel", "dtype", "configurations", "error / tolerance", "")
        with _progress() as watch:
            for finding in selftest.verify(device):
                watch(f"{finding.operator} {finding.form} {finding.dtype}", 0)
                verdict = "fine" if finding.fine else f"WRONG: {finding.wrong}"
                table.add_row(
                    finding.operator, finding.form, finding.dtype, str(finding.configurations),
                    f"{finding.error:.2g}", verdict,
                )  # fmt: skip
                wrong += [] if finding.fine else [finding]
        say(f"{device}: every kernel against its equation in float64", "bold")
        show(table)
        for train in (False, True):
            for what, peers in selftest.peers(device, train).items():
                with _progress() as watch:
                    run = benches.compare(
                        peers, None, train=train, compiled=False, rounds=rounds,
                        seconds=min(seconds, 5.0), watch=watch, device=device,
                        dtype=torch.bfloat16 if device == "cuda" else torch.float32,
                    )  # fmt: skip
                say(f"{device}: {what}, {'forward and backward' if train else 'forward'}", "bold")
                show(benches.table(run))
    if wrong:
        raise RuntimeError(f"bench: {len(wrong)} kernels are wrong here; please report this output")
    say("every kernel is right here")


def _deployed(
    names: list[str], size: int, batch: int, threads: int, rounds: int, json: str | None,
    file: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    from tempfile import TemporaryDirectory

    from saccade import bench as benches

    title = f"{batch} x {size} x {size} pixels: as deployed, {threads} thread(s)"
    with TemporaryDirectory(prefix="saccade-") as folder, _progress() as watch:
        run = benches.deploy(names, Path(folder), size, batch, threads, rounds, watch)
    rows = benches.deployment_lines(run, what=title)
    if json == "-":
        for row in rows:
            show_json(row)
    else:
        say(title, "bold")
        show(benches.deployment_table(run))
    for sentence in benches.deployment_notes(run):
        (note if json == "-" else say)(sentence)
    if file is not None:
        benches.append_lines(rows, file)
    if plot is not None and run.rows:
        benches.draw_deployment(run, plot, title)
        note(f"drawn: {plot}")


def _sides(over: str) -> list[int]:
    """The sides that `224,320` stands for."""
    words = over.replace(",", " ").split()
    if len(words) < 2 or not all(word.isdecimal() for word in words):
        raise ValueError(f"bench: --over is two sides or more, such as 224,320,448; got {over!r}")
    return sorted(set(map(int, words)))


def _check_bench(
    names: list[str], least: dict[str, int], device: str, json: Path | None, plot: Path | None
) -> None:
    """Refuse at once what would fail after minutes of measuring."""
    if not names:
        raise ValueError("bench: name some models, or an operator (sasa, qna, linglo)")
    for key, value in least.items():
        if value < 1:
            raise ValueError(f"bench: --{key} must be at least 1, got {value}")
    import torch

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
    from rich.progress import BarColumn, Progress

    err = console(stderr=True)
    bar = Progress(
        BarColumn(), "{task.description}", console=err, transient=True, auto_refresh=False,
        disable=not err.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=1)
        yield lambda name, rounds: bar.update(
            task, description=name, completed=rounds, refresh=True
        )


def _refuse(options: dict[str, Any], owner: str, subject: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise ValueError(f"bench: --{key} is for {owner}, got it with {subject}")
