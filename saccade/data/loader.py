"""Batches of images, reproducible for any number of workers, processes and parts.

Epoch n is a permutation of the set; step s takes positions [s batch, (s + 1) batch) of it; each
process takes an equal slice of those, in parts that fit into memory. The random numbers of an image
are a function of (seed, epoch, position) alone:

    epoch(n, start=k) is epoch(n) after k steps, bit for bit,
    with any number of workers, processes and parts.

With `like` (wide or tall), the images of a step are of one kind, which saves padding; the last
steps mix the images that are left over of each kind.
With `often`, an epoch draws its images with repetition and is as long as without.

A picture that cannot be read does not stop a run: where batches must be whole, another takes its
place, else it is left out. It is listed in `bad`, and only too many of them raise an error.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from saccade.data.augment import Mix
from saccade.data.reader import ORDER, Batch, Order, Readable, Reader, Result, chance
from saccade.data.workers import Pool

__all__ = ["Batch", "Loader", "Readable"]


class Loader:
    """The steps of an epoch; each is a list of this process's parts."""

    def __init__(
        self,
        images: Readable,
        transform: Callable[[Any, Any], tuple[Tensor, dict[str, Any]]],
        *,
        batch: int,
        part: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        shuffle: bool = True,
        repeats: int = 1,
        mix: Mix | None = None,
        like: Integer[np.ndarray, "N"] | None = None,
        often: Float[np.ndarray, "N"] | None = None,
        whole: bool = True,
        limit: float = 0.05,
    ):
        _check(len(images), batch, part, world, repeats, mix is not None, whole)
        self.images, self.batch, self.seed, self.rank, self.world = images, batch, seed, rank, world
        self.part = batch if part is None else max(part // 2 * 2, min(part, 2))
        self.shuffle, self.whole, self.limit = shuffle, whole, limit
        self.repeats, self.distinct = repeats, -(-batch // repeats)
        self.bad: dict[str, str] = {}
        """Unreadable images met so far in this process, and why."""
        self.transform, self.mix, self.like, self.often = transform, mix, like, often
        self._pool = Pool(Reader(images, transform, seed, mix, whole), workers)
        self._stream: Iterator[Result] | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch)
        return whole + (rest > 0 and not self.whole)

    def epoch(self, n: int, start: int = 0) -> Iterator[list[Batch]]:
        """The steps of epoch n from step `start`."""
        if not 0 <= start <= len(self):
            raise ValueError(f"Loader: an epoch has {len(self)} steps, got {start=}")
        return self._steps(self._plan(n, start))

    def close(self) -> None:
        """End the workers and the current epoch; the next epoch starts new ones."""
        self._stream = None
        self._pool.close()

    # -- what to read -----------------------------------------------------------------------

    def _plan(self, n: int, start: int) -> list[list[Order]]:
        draw = chance(ORDER, self.seed, n)
        order = draw.permutation(len(self.images)) if self.shuffle else None
        if order is not None and self.often is not None:
            order = resampled(self.often, draw)
        if order is not None and self.like is not None:
            order = alike(order, self.like, self.distinct, draw)
        return [self._step(n, s, order) for s in range(start, len(self))]

    def _step(self, n: int, s: int, order: Int64[np.ndarray, "N"] | None) -> list[Order]:
        first = s * self.batch
        size = self.batch if self.whole else min(self.batch, len(self.images) - first)
        low, high = (r * size // self.world for r in (self.rank, self.rank + 1))
        batches = []
        for at in range(low, high, self.part):
            # Each round is rotated by one place, so that neighbours differ in every round.
            rounds, inside = np.divmod(np.arange(at, min(at + self.part, high)), self.distinct)
            indices = s * self.distinct + (inside + rounds) % self.distinct
            batches.append(Order(n, s, first + at, indices if order is None else order[indices]))
        return batches

    # -- reading ----------------------------------------------------------------------------

    def _steps(self, plan: list[list[Order]]) -> Iterator[list[Batch]]:
        stream = self._stream = self._pool.run([order for step in plan for order in step])
        for step in plan:
            parts = []
            for order in step:
                if stream is not self._stream:
                    raise RuntimeError("Loader: another epoch was begun; finish one at a time")
                batch, bad = next(stream)
                self.note(bad, len(order.indices) - len(batch or ()))
                if batch is not None:
                    parts.append(batch)
            yield parts

    def note(self, bad: dict[str, str], short: int = 0) -> None:
        """Remember unreadable images; raise if they are too many, or if a batch is incomplete."""
        self.bad |= bad
        share, gap = self.limit * len(self.images), short and self.whole
        if bad and (len(self.bad) > share or gap):
            first = "; ".join(f"{name} ({why})" for name, why in list(self.bad.items())[:3])
            self.close()
            allowed = f"more than the {self.limit:.1%} that data.bad allows"
            raise ValueError(
                f"{len(self.bad)} of {len(self.images)} images cannot be read, "
                f"{'and hardly any can' if gap else allowed}; repair or remove them: {first}, ..."
            )


def resampled(often: Float[np.ndarray, "N"], draw: np.random.Generator) -> Int64[np.ndarray, "N"]:
    """As many images as there are, in random order, each about so often as its number says.

    An image comes as often as its share of the whole says, rounded up or down by chance.
    """
    count = len(often)
    expected = often * (count / often.sum())
    times = np.floor(expected).astype(np.int64)
    ends = np.cumsum(expected - times)
    points = draw.random() + np.arange(count - times.sum())
    extra = np.minimum(np.searchsorted(ends, points), count - 1)
    times += np.bincount(extra, minlength=count)
    return draw.permutation(np.repeat(np.arange(count), times))


def alike(
    order: Int64[np.ndarray, "N"],
    like: Integer[np.ndarray, "N"],
    size: int,
    draw: np.random.Generator,
) -> Int64[np.ndarray, "N"]:
    """`order`, changed so that every `size` consecutive images are of one kind."""
    runs, rest = [], []
    for kind in np.unique(like):
        own = order[like[order] == kind]
        whole = len(own) // size * size
        runs += [*own[:whole].reshape(-1, size)]
        rest.append(own[whole:])
    return np.concatenate([*(runs[i] for i in draw.permutation(len(runs))), *rest])


def _check(
    count: int, batch: int, part: int | None, world: int, repeats: int, mixed: bool, whole: bool
) -> None:
    if batch < 1 or (part is not None and part < 1) or repeats < 1:
        raise ValueError(f"Loader: at least 1 each, got {batch=} {part=} {repeats=}")
    if not count:
        raise ValueError("Loader: the set has no images")
    if whole and count < batch:
        raise ValueError(
            f"Loader: a step takes {batch} images, the set has {count}; try loop.batch={count}"
        )
    if whole and batch % world:
        raise ValueError(f"Loader: processes must share a batch evenly, got {batch=} {world=}")
    if repeats > 1 and (not whole or batch < 2 * repeats):
        raise ValueError(
            f"Loader: repeats need whole batches of two images or more, got {batch=} {repeats=}"
        )
    if mixed and (not whole or part == 1 or (world > 1 and batch // world % 2)):
        raise ValueError(
            f"Loader: mixing pairs neighbours, so parts must be even, got {batch=} {part=} {world=}"
        )
