"""Do whole models profit from the kernels?

    python benchmarks/models.py [--models linglo_b0 qna_t sasa_resnet26] [--sizes 224 1024]
                                [--threads 1 2] [--only eager forward] [--out models.jsonl]

Each model with the kernels and without (SACCADE_NATIVE=0), in two processes that take turns; eager
and compiled, forward and training step (forward and backward). Every finished row is a JSON line,
and rows that the file holds already, of the same sources and torch, are not measured again: stop it
with Ctrl-C and start it anew as you like. Ends with one table and a PNG beside the file.
"""

import argparse
import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import signal
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from saccade import bench
from saccade.bench.clock import Samples
from saccade.bench.report import digits
from saccade.ops.native import build

SIDES = {"plain": "0", "kernels": ""}  # SACCADE_NATIVE in each of the two processes


@dataclass(frozen=True)
class Case:
    model: str
    size: int
    batch: int
    threads: int
    compiled: bool
    train: bool

    def __str__(self) -> str:
        mode, kind = "compiled" if self.compiled else "eager", "step" if self.train else "forward"
        return f"{self.batch}x{self.size}px {self.threads} thr. {mode} {kind}"


# -- one process a side ---------------------------------------------------------------------------


def serve(pipe: Connection, case: Case) -> None:
    """Build, say how much memory it takes, then run once for every word that comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C
    torch.set_num_threads(case.threads)
    peer = bench.models.peers([case.model], case.size, case.batch, train=case.train)[case.model]
    if peer.absent:
        raise SystemExit(peer.absent)
    call = peer.call(case.train, case.compiled)
    call()
    pipe.send({"peak": bench.peak_memory(call), "machine": bench.stamp()})
    gc.disable()
    while pipe.recv() == "go":
        samples = Samples()
        samples.take(call)
        pipe.send((samples.wall[0], samples.cpu[0]))


class Side:
    """A process that has one case ready."""

    def __init__(self, native: str, case: Case):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        before = os.environ.get("SACCADE_NATIVE")
        os.environ["SACCADE_NATIVE"] = native
        self.process = spawn.Process(target=serve, args=(theirs, case), daemon=True)
        self.process.start()
        theirs.close()
        os.environ.pop("SACCADE_NATIVE")
        if before is not None:
            os.environ["SACCADE_NATIVE"] = before
        self.samples, self.about = Samples(), {}

    def prepare(self) -> None:
        self.about = self.pipe.recv()

    def turn(self) -> None:
        self.pipe.send("go")
        wall, cpu = self.pipe.recv()
        self.samples.wall.append(wall)
        self.samples.cpu.append(cpu)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send("stop")
        self.process.join(5)  # it may be in the middle of a call
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def measure(case: Case, rounds: int, seconds: float) -> dict:
    """Both sides in turns; at least two rounds."""
    sides: dict[str, Side] = {}
    try:
        for name, native in SIDES.items():
            sides[name] = Side(native, case)
            sides[name].prepare()  # one after the other, so that neither slows the other down
        start = time.perf_counter()
        for result in range(rounds):
            if result >= 2 and time.perf_counter() - start > seconds:
                break
            for side in sides.values():
                side.turn()
    finally:
        for side in sides.values():
            side.close()
    row = {name: {**asdict(s.samples.timing()), **s.about} for name, s in sides.items()}
    clock = "cpu" if case.threads == 1 else "best"
    faster = row["plain"][clock] / row["kernels"][clock]
    return {**asdict(case), **row, "faster": faster, "sources": build.fingerprint()}


# -- what is kept and shown -----------------------------------------------------------------------


def earlier_rows(path: Path) -> dict[Case, dict]:
    """The rows of the file that were measured with the sources and the torch of today."""
    rows = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        row = json.loads(line)
        same_torch = row["kernels"]["machine"]["torch"] == torch.__version__
        if row["sources"] == build.fingerprint() and same_torch:
            rows[Case(**{key: row[key] for key in Case.__dataclass_fields__})] = row
    return rows


def table(rows: dict[Case, dict]) -> Table:
    """CPU time with one thread, else wall time: the best of each."""
    out = Table("model", box=None, padding=(0, 1, 0, 0))
    out.add_column("how", no_wrap=True)
    for column in ("plain ms", "kernels ms", "faster", "plain MB", "kernels MB"):
        out.add_column(column.replace(" ", "\n"), justify="right")
    for case, row in rows.items():
        clock = "cpu" if case.threads == 1 else "best"
        times = (digits(row[side][clock] * 1e3) for side in SIDES)
        peaks = (digits(row[side]["peak"] / 2**20) for side in SIDES)
        out.add_row(case.model, str(case), *times, f"{digits(row['faster'])}x", *peaks)
    return out


def draw(rows: dict[Case, dict], path: Path) -> None:
    """How many times faster, a panel per model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    models = list(dict.fromkeys(case.model for case in rows))
    settings = list(dict.fromkeys(str(case) for case in rows))
    figure, axes = plt.subplots(
        1, len(models), figsize=(2.5 + 2.5 * len(models), 1.2 + 0.28 * len(settings)),
        sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    most = max(row["faster"] for row in rows.values())
    for axis, model in zip(axes[0], models, strict=True):
        own = [(str(case), row["faster"]) for case, row in rows.items() if case.model == model]
        axis.scatter([f for _, f in own], [settings.index(s) for s, _ in own], color="#0072B2")
        for setting, faster in own:
            axis.annotate(
                digits(faster), (faster, settings.index(setting)), xytext=(6, 0),
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
        axis.axvline(1, color="#999999", linewidth=1)
        axis.set(title=model, xlabel="times faster", xscale="log", xlim=(0.5, 2.5 * max(most, 1)))
        axis.grid(alpha=0.3)
    axes[0, 0].set_yticks(range(len(settings)), settings)
    axes[0, 0].invert_yaxis()
    figure.suptitle("with the kernels, against plain PyTorch")
    figure.savefig(path, dpi=150)


def cases(a: argparse.Namespace) -> list[Case]:
    modes = {"eager": False, "compiled": True}
    kinds = {"forward": False, "step": True}
    modes, kinds = (
        [value for name, value in way.items() if not set(way) & set(a.only) or name in a.only]
        for way in (modes, kinds)
    )
    settings = itertools.product(
        a.models, zip(a.sizes, a.batches, strict=True), a.threads, modes, kinds
    )
    return [
        Case(model, *size, threads, mode, kind) for model, size, threads, mode, kind in settings
    ]


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--models", nargs="+", default=["linglo_b0", "qna_t", "sasa_resnet26"])
    parse.add_argument("--sizes", type=int, nargs="+", default=[224, 1024])
    parse.add_argument("--batches", type=int, nargs="+", default=[4, 1], help="one for each size")
    parse.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parse.add_argument(
        "--only", nargs="+", default=[], choices=["eager", "compiled", "forward", "step"]
    )
    parse.add_argument("--rounds", type=int, default=10, help="turns of each side at most")
    parse.add_argument("--seconds", type=float, default=30.0, help="for the turns of a row")
    parse.add_argument("--out", type=Path, default=Path("models.jsonl"))
    a = parse.parse_args()
    if len(a.sizes) != len(a.batches):
        parse.error(f"--batches: one for each of --sizes {a.sizes}, got {a.batches}")
    console, rows = Console(), earlier_rows(a.out)
    expected = cases(a)
    try:
        for i, case in enumerate(expected):
            if case in rows:
                continue
            with console.status(f"{i + 1} of {len(expected)}: {case.model}, {case}"):
                try:
                    rows[case] = measure(case, a.rounds, a.seconds)
                except EOFError:
                    console.print(f"left out: {case.model}, {case}: its process ended early")
                    continue
            with a.out.open("a") as file:
                file.write(json.dumps(rows[case]) + "\n")
            console.print(f"{case.model}, {case}: {digits(rows[case]['faster'])}x")
    except KeyboardInterrupt:
        console.print("interrupted: the next start goes on from here")
    rows = {case: rows[case] for case in expected if case in rows}
    if rows:
        console.print(table(rows))
        draw(rows, a.out.with_suffix(".png"))
        console.print(f"drawn: {a.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
