"""Several peers in one run: times, peak memory, speed beside the machine's limits, ratios."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Literal

import torch

from saccade.bench.clock import Call, Samples, Watch, peak_memory, sample
from saccade.bench.machine import Limits, free_memory, limit_calls, limits_of
from saccade.bench.peer import Peer, Work
from saccade.spelling import nearest

Clock = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Row:
    """One peer measured: seconds (best and median of `times` calls), peak bytes, speed, ratios."""

    name: str
    best: float
    median: float
    cpu: float
    cpu_median: float
    times: int
    peak: int
    gflops: float  # 1e9 operations of its work a second
    of_compute: float  # that, as a share of what a large matrix product reaches
    of_memory: float  # likewise bytes that must be moved, as a share of what a copy reaches
    slower: float  # best time over the baseline's
    heavier: float  # peak memory over the baseline's

    @property
    def of_limit(self) -> tuple[float, str]:
        """The share of the machine's limit that it reaches, and which limit that is."""
        return max((self.of_compute, "compute"), (self.of_memory, "memory"))


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison; an interrupted one has fewer `rows`."""

    rows: list[Row]
    against: str
    by: Clock
    limits: Limits | None  # None if nothing was measured
    left_out: dict[str, str] = field(default_factory=dict)  # with the reason
    interrupted: bool = False


def compare(
    peers: Mapping[str, Peer],
    against: str | None = None,
    *,
    train: bool = False,
    compiled: bool = False,
    rounds: int = 10,
    seconds: float = 60.0,
    by: Clock | None = None,
    watch: Watch = lambda *_: None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Comparison:
    """Time and weigh the peers in turns, the machine's limits among them.

    Ratios are to `against` (the first, if not given) by CPU time of one thread, or by the wall
    clock where there are more. An interrupt ends the run early: what was measured is kept.
    """
    left_out = {name: why for name, peer in peers.items() if (why := _reason(peer))}
    against = against or next((n for n in peers if n not in left_out), next(iter(peers)))
    if against not in peers:
        raise ValueError(
            f"bench: {against!r} is not among what is measured, so nothing can be compared "
            f"with it; did you mean {nearest(against, peers)!r}?"
        )
    if against in left_out:
        raise ValueError(f"bench: {against} cannot run here: {left_out[against]}")
    names = [against, *(n for n in peers if n != against and n not in left_out)]
    calls = limit_calls(dtype, device)  # these first, so that every row can be compared with them
    calls |= {name: peers[name].call(train, compiled) for name in names}
    peaks: dict[str, int] = {}
    works: dict[str, Work] = {}

    def prepare(name: str, call: Call) -> None:
        call()
        if name in peers:
            peaks[name] = peak_memory(call, device)
            works[name] = peers[name].work_of(train)

    samples: dict[str, Samples] = {}
    interrupted = False
    try:
        sample(calls, samples, rounds, seconds, prepare, watch)
    except KeyboardInterrupt:
        interrupted = True
    by = by or ("cpu" if torch.get_num_threads() == 1 and device == "cpu" else "wall")
    times = {name: one.timing() for name, one in samples.items() if one.cpu}
    if against not in times:
        return Comparison([], against, by, None, left_out, interrupted)
    best = {name: max(t.cpu if by == "cpu" else t.best, 1e-9) for name, t in times.items()}
    limits = limits_of(best)

    def row(name: str) -> Row:
        gflops, gbytes = (amount / best[name] / 1e9 for amount in works[name])
        shares = gflops / limits.gflops, gbytes / limits.gbytes
        ratios = best[name] / best[against], peaks[name] / max(peaks[against], 1)
        return Row(name, *astuple(times[name]), peaks[name], gflops, *shares, *ratios)

    rows = [row(name) for name in peers if name in times]
    return Comparison(rows, against, by, limits, left_out, interrupted)


def _reason(peer: Peer) -> str:
    """Why a peer is not to be run, or nothing."""
    free = free_memory()
    if not peer.absent and peer.needs > 0.8 * free:
        return f"needs about {peer.needs / 2**30:.1f} GB, {free / 2**30:.1f} GB are free"
    return peer.absent
