"""How many instructions operators and models take, and which commit made one of them take more.

    python -m tools.instructions                        the counts of this tree
    python -m tools.instructions --against v0.1.0       beside those of another commit
    python -m tools.instructions --since "1 day ago"    beside the last commit before that time
    python -m tools.instructions --only qna linglo_nano

Times differ by some percent from run to run on most machines, counts of instructions by a
ten-thousandth: callgrind (of valgrind, which must be installed) runs the calls on a processor of
its own. That one has AVX2 and no AVX-512, so it is the kernels of AVX2 that are counted, with all
that Python and torch do around them. Where a count grew by 3% (`--limit`) or more, the commits
between are halved until the one is known that did it, and the command ends with 1. A count says
nothing of memory and caches: it tells that something changed, not how long it takes.

A commit takes four minutes of one core, and as long again where its kernels must be compiled;
commits are checked out in a temporary folder. The clone must hold them (`git fetch --unshallow`).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 0.03
CALLS_BEFORE = 5  # until what is made ready at first is ready

SWITCH = """
#include <valgrind/callgrind.h>
void on(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void off(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""

Counts = dict[str, int]


class CannotCountError(RuntimeError):
    """Something that is needed is not here; the message says what, and what to do."""


def cases() -> dict[str, Callable[[], object]]:
    """Ten operators, as their layers call them, and three models, one call each."""
    import timm
    import torch
    from torch import nn

    import saccade.models  # noqa: F401  (registers them)
    from saccade import layers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    known: dict[str, Callable[[], object]] = {}

    def forward(name: str, layer: nn.Module, *shape: int) -> None:
        layer, x = layer.eval(), torch.randn(*shape)

        def call() -> object:
            with torch.no_grad():
                return layer(x)

        known[name] = call

    def step(name: str, layer: nn.Module, *shape: int) -> None:
        layer, x = layer.train(), torch.randn(*shape, requires_grad=True)
        known[name] = lambda: layer(x).square().mean().backward()

    nchw = {"layout": "NCHW"}
    forward("sasa", layers.StandAloneAttention(64, heads=8, **nchw), 1, 64, 28, 28)
    step("sasa, with backward", layers.StandAloneAttention(64, heads=8, **nchw), 1, 64, 28, 28)
    forward("sasa's stem", layers.AttentionStem(3, 64), 1, 3, 64, 64)
    forward("qna", layers.LearnedQueryAttention(64, 8, **nchw), 1, 64, 28, 28)
    step("qna, with backward", layers.LearnedQueryAttention(64, 8, **nchw), 1, 64, 28, 28)
    forward("qna, upsampling", layers.LearnedQueryUpsampling(64, 8, **nchw), 1, 64, 14, 14)
    forward("key-only", layers.KeyOnlyAttention(64, 2, **nchw), 1, 64, 28, 28)
    step("key-only, with backward", layers.KeyOnlyAttention(64, 2, **nchw), 1, 64, 28, 28)
    feed = lambda: layers.FeedForward(64, 256, position=layers.RPCPE(256))  # noqa: E731
    forward("feed-forward with rp-cpe", feed(), 1, 28, 28, 64)
    step("feed-forward with rp-cpe, with backward", feed(), 1, 28, 28, 64)
    for name in ("linglo_nano", "qna_nano", "sasa_nano"):
        forward(name, timm.create_model(name), 1, 3, 64, 64)
    return known


def measure(switch: str, only: Sequence[str]) -> None:
    """Inside callgrind: call each case until it is warm, then once while instructions count."""
    import ctypes
    import gc

    library = ctypes.CDLL(switch)
    for name, call in cases().items():
        if only and not any(word in name for word in only):
            continue
        for _ in range(CALLS_BEFORE):
            call()
        gc.collect()
        gc.disable()
        library.on()
        call()
        library.off(name.encode())
        gc.enable()


def count(tree: Path, only: Sequence[str] = ()) -> Counts:
    """The instructions of each case, by the code in `tree`."""
    environment = os.environ | {
        "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }  # fmt: skip
    ready = "from saccade.ops import native; print(native.where())"
    _run([sys.executable, "-c", ready], env=environment)  # compiled here, and not under callgrind
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        switch = _switch(place)
        words = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no"]
        words += [f"--callgrind-out-file={place / 'counts'}", sys.executable, str(Path(__file__))]
        _run([*words, "--inside", str(switch), "--only", *only], env=environment)
        files = sorted(place.glob("counts.*"), key=lambda file: int(file.suffix[1:]))
        return dict(filter(None, map(_read, files)))


def _switch(folder: Path) -> Path:
    """The library by which a program under valgrind begins and ends the count."""
    if shutil.which("valgrind") is None:
        raise CannotCountError("valgrind is not installed; install it (apt install valgrind)")
    source, library = folder / "switch.c", folder / "switch.so"
    source.write_text(SWITCH)
    try:
        _run([os.environ.get("CC") or "cc", "-shared", "-fPIC", "-o", str(library), str(source)])
    except FileNotFoundError as error:
        raise CannotCountError("there is no C compiler; install one, or set CC to it") from error
    return library


def _read(file: Path) -> tuple[str, int] | None:
    """A case and its count, of a file that callgrind wrote; None of one that is no case's."""
    name = total = None
    for line in file.read_text(errors="replace").splitlines():
        if line.startswith("desc: Trigger: Client Request: "):
            name = line.removeprefix("desc: Trigger: Client Request: ")
        elif line.startswith(("summary: ", "totals: ")):
            total = int(line.split()[1])
    return None if name is None or not total else (name, total)


def _run(words: list[str], **options: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, **options)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise CannotCountError(f"{' '.join(words[:3])} ... failed: {last}")
    return done.stdout.strip()


class Commits:
    """Counts of commits, each checked out once, in a folder that is removed at the end."""

    def __init__(self, only: Sequence[str]):
        self.only, self.known = only, dict[str, Counts]()

    def counts(self, commit: str) -> Counts:
        if commit not in self.known:
            print(
                f"{commit[:10]} {_run(['git', 'log', '-1', '--format=%s', commit])}",
                file=sys.stderr,
            )
            with tempfile.TemporaryDirectory() as folder:
                tree = Path(folder) / "tree"
                _run(["git", "worktree", "add", "--detach", str(tree), commit])
                try:
                    self.known[commit] = count(tree, self.only)
                finally:
                    _run(["git", "worktree", "remove", "--force", str(tree)])
        return self.known[commit]


def grown(before: Counts, after: Counts, limit: float) -> dict[str, float]:
    """By what share each case grew, of those that grew by `limit` or more."""
    shares = {name: after[name] / before[name] - 1 for name in after if before.get(name)}
    return {name: share for name, share in shares.items() if share >= limit}


def first_slow(commits: Sequence[str], slow: Callable[[str], bool]) -> str:
    """The first of `commits` that is slow; the last one is, and the one before the first is not."""
    low, high = 0, len(commits) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if slow(commits[middle]) else (middle + 1, high)
    return commits[low]


def _between(old: str, new: str) -> list[str]:
    """The commits after `old` up to `new` that touch what is counted, the oldest first."""
    words = ["git", "rev-list", "--reverse", "--first-parent", f"{old}..{new}", "--", "saccade"]
    return _run(words).split()


def table(before: Counts, after: Counts, limit: float) -> str:
    """The counts, in millions, and how they changed."""
    width = max(map(len, after), default=4)
    lines = []
    for name, total in after.items():
        line = f"{name:{width}} {total / 1e6:12.3f}"
        if before.get(name):
            change = total / before[name] - 1
            line += f" {before[name] / 1e6:12.3f} {change:+8.2%}" + " !" * (change >= limit)
        lines.append(line)
    head = f"{'million instructions':{width}} {'now':>12}"
    return "\n".join([head + (f" {'before':>12} {'change':>8}" if before else ""), *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--since", metavar="TIME", help="compare with the last commit before then")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases with a word")
    parser.add_argument("--limit", type=float, default=LIMIT, help="a share (default 0.03)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(options.inside, options.only)
        return 0
    try:
        return compare(options.against, options.since, options.only, options.limit)
    except CannotCountError as error:
        print(f"instructions: {error}", file=sys.stderr)
        return 2


def compare(against: str | None, since: str | None, only: Sequence[str], limit: float) -> int:
    """Print the table; 1 if a case grew, after the commits that did it were named."""
    old = None
    if against or since:
        words = ["git", "rev-parse", "--verify", f"{against}^{{commit}}"]
        old = _run(words if against else ["git", "rev-list", "-1", f"--before={since}", "HEAD"])
        if not old:
            raise CannotCountError(f"there is no commit before {since!r}; name one by --against")
    commits = Commits(only)
    before = commits.counts(old) if old else {}
    after = count(ROOT, only)
    if not after:
        raise CannotCountError(f"no case has {only} in its name; leave --only out to see all")
    print(table(before, after, limit))
    worse = grown(before, after, limit)
    between = _between(old, "HEAD") if old and worse else []
    for name, share in worse.items():
        low = before[name] * (1 + limit / 2)  # half of the limit: what grew in two steps is seen

        def slow(commit: str, name: str = name, low: float = low) -> bool:
            return commits.counts(commit).get(name, 0) > low

        if not between or not slow(between[-1]):
            print(f"{name}: {share:+.1%}, by changes that are not committed")
            continue
        commit = first_slow(between, slow)
        print(f"{name}: {share:+.1%}, by {_run(['git', 'log', '-1', '--format=%h %s', commit])}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
