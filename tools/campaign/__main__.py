"""`python -m tools.campaign`: the options, the time, and one trial after the other."""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tools.campaign.kinds import KINDS, UNITS, Kind
from tools.campaign.ledger import Ledger
from tools.campaign.patience import Watch, own
from tools.campaign.verdict import Finding

STILL = 120  # seconds in which a trial shows a sign of life


class Overdue(BaseException):
    """A trial that does not end."""


def main(words: list[str] | None = None) -> int:
    """Run a campaign; 1 if it has findings, 130 after Ctrl-C."""
    options = parsed(words)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=options.place, prefix="campaign-") as place:
        if options.repeat:
            kind, _, seed = options.repeat.partition(":")
            return repeat(kind, int(seed), Path(place))
        ledger = Ledger(Path(options.out), options.seed)
        interrupted = False
        try:
            for kind in options.only:
                (Path(place) / kind).mkdir()
                with quiet(Path(options.out) / "stderr.txt"):
                    campaign(kind, ledger, Path(place) / kind, options)
        except KeyboardInterrupt:
            interrupted = True
        ledger.say("\n" + ledger.table(options.only, UNITS))
    findings = sum(ledger.counts(kind)["finding"] for kind in options.only)
    return 130 if interrupted else int(findings > 0)


def parsed(words: list[str] | None) -> Any:
    """The options, with `only` as a list and `count` as a dict."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="another campaign (default 1)")
    parser.add_argument("--minutes", type=float, help="for all kinds together, divided evenly")
    parser.add_argument("--count", default="", help="trials of each kind: 100, or kills=10,disk=2")
    parser.add_argument("--only", default=",".join(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--out", default="campaign", help="folder of the results")
    parser.add_argument("--place", help="where temporary folders are made")
    parser.add_argument("--repeat", metavar="KIND:SEED", help="one trial again")
    options = parser.parse_args(words)
    options.only = options.only.split(",")
    for kind in (*options.only, *([options.repeat.partition(":")[0]] if options.repeat else ())):
        if kind not in KINDS:
            parser.error(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    if options.count.isdigit():
        options.count = dict.fromkeys(options.only, int(options.count))
    else:
        pairs = [pair.partition("=") for pair in options.count.split(",") if pair]
        if any(kind not in KINDS or not count.isdigit() for kind, _, count in pairs):
            parser.error(f"--count takes 100, or kills=10,disk=2; got {options.count!r}")
        options.count = {kind: int(count) for kind, _, count in pairs}
    return options


def campaign(kind: str, ledger: Ledger, place: Path, options: Any) -> None:
    """The trials of one kind, until its count or its time is reached."""
    budget = 60 * options.minutes / len(options.only) if options.minutes else None
    usual = None if budget else KINDS[kind].usual
    most = options.count.get(kind, usual)
    began = time.monotonic()
    with contextlib.closing(KINDS[kind].make()(place)) as one:
        while most is None or len(ledger.read(kind)) < most:
            seed = ledger.next(kind)
            ledger.write(kind, trial(one, KINDS[kind].patience, seed, place))
            ledger.progress(kind)
            if budget is not None and time.monotonic() - began > budget:
                break
    ledger.progress(kind, end=True)


def trial(one: Kind, patience: float, seed: int, place: Path) -> dict[str, Any]:
    """One trial, and its line."""
    folder = place / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    began = time.monotonic()
    line: dict[str, Any] = {"seed": seed}
    try:
        with alarm(patience):
            outcome = one.trial(random.Random(seed), folder)
        line |= {"outcome": "refused" if outcome.refused else "right", "what": outcome.what[:300],
                 "events": outcome.events}  # fmt: skip
    except KeyboardInterrupt:
        raise
    except Finding as error:
        line |= {"outcome": "finding", "what": str(error)[:5000], "events": 1}
    except Overdue as error:
        text = f"{error}\n{traceback.format_exc()}"
        line |= {"outcome": "finding", "what": text[:5000], "events": 1}
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        what = f"{type(error).__name__}: {error}\n{text[-4000:]}"
        line |= {"outcome": "finding", "what": what[:5000], "events": 1}
    return {**line, "seconds": round(time.monotonic() - began, 3)}


@contextlib.contextmanager
def alarm(seconds: float) -> Generator[None]:
    """Raise `Overdue` inside if it stands still, or takes so many seconds of the CPU."""
    watch = Watch(own)

    def late(*_: Any) -> None:
        why = watch.over(seconds)
        if why is not None:
            raise Overdue(why)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, STILL), min(seconds, STILL))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def quiet(path: Path) -> Generator[None]:
    """What C libraries print about broken pictures goes to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def repeat(kind: str, seed: int, place: Path) -> int:
    """One trial again, told in full."""
    with contextlib.closing(KINDS[kind].make()(place)) as one:
        line = trial(one, KINDS[kind].patience, seed, place)
    print("\n".join(f"{key}: {value}" for key, value in line.items()))
    return int(line["outcome"] == "finding")


if __name__ == "__main__":
    sys.exit(main())
