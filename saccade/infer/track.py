"""Tracking: boxes of one frame joined with those of the frames before, as ByteTrack does.

    where a track is expected:  the middle moves on by its velocity v, the size stays
        v <- v + MIXED (how far the middle moved per frame - v)
    first    boxes of a high score are joined with the tracks that they overlap most
    then     the tracks that are left with boxes of a lower score: objects that are half hidden
    a box of a high score that is left begins a track; its second box makes it known
    a track without a box for `patience` frames ends

The overlaps of all pairs of a class are joined by the largest sum (Hungarian, by scipy where it is
there, else greedily).
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int64

MIXED = 0.5  # of the newest movement in a track's velocity
LEAST = 0.3  # overlap of boxes that are joined
LEAST_LOW = 0.5  # the same for boxes of a low score
STEADY = 2  # boxes after which a track is known


@dataclass
class Track:
    """An object over frames."""

    number: int
    """From 1, given when the track is known; 0 before."""
    label: int
    box: Float[np.ndarray, "4"]
    """x0 y0 x1 y1 in the last frame that it had a box in."""
    frame: int
    boxes: int = 1
    velocity: Float[np.ndarray, "2"] = field(default_factory=lambda: np.zeros(2))

    def expected(self, frame: int) -> Float[np.ndarray, "4"]:
        return self.box + np.tile((frame - self.frame) * self.velocity, 2)

    def take(self, box: Float[np.ndarray, "4"], frame: int) -> None:
        movement = (_middle(box) - _middle(self.box)) / (frame - self.frame)
        share = 1.0 if self.boxes == 1 else MIXED
        self.velocity = self.velocity + share * (movement - self.velocity)
        self.box, self.frame, self.boxes = box, frame, self.boxes + 1


class Tracker:
    """Numbers for objects, frame by frame.

        numbers = Tracker()(boxes, labels, scores)      0: not known yet

    Args:
        high: scores of boxes that may begin a track
        patience: frames that a track may be without a box
    """

    def __init__(self, high: float = 0.5, patience: int = 30):
        if not 0 <= high <= 1 or patience < 1:
            raise ValueError(
                f"Tracker: a score in 0..1 and a patience of 1 or more, got {high=} {patience=}"
            )
        self.high, self.patience = high, patience
        self.tracks: list[Track] = []
        self.frame, self.last = 0, 0

    def __call__(
        self,
        boxes: Float[np.ndarray, "n 4"],
        labels: Int64[np.ndarray, "n"],
        scores: Float[np.ndarray, "n"],
    ) -> Int64[np.ndarray, "n"]:
        """The number of each box's track; 0 where it has none or is not known yet."""
        self.frame += 1
        self.tracks = [t for t in self.tracks if self.frame - t.frame <= self.patience]
        owners: dict[int, Track] = {}
        sure = scores >= self.high
        unmatched = self._join(self.tracks, np.flatnonzero(sure), boxes, labels, LEAST, owners)
        steady = [track for track in unmatched if track.boxes >= STEADY]
        self._join(steady, np.flatnonzero(~sure), boxes, labels, LEAST_LOW, owners)
        for i in np.flatnonzero(sure):
            if int(i) not in owners:
                owners[int(i)] = Track(0, int(labels[i]), boxes[i].astype(float), self.frame)
                self.tracks.append(owners[int(i)])
        for i in sorted(owners):
            track = owners[i]
            if not track.number and (track.boxes >= STEADY or self.frame == 1):
                self.last += 1
                track.number = self.last
        numbers = [owners[i].number if i in owners else 0 for i in range(len(boxes))]
        return np.array(numbers, np.int64)

    def _join(
        self,
        tracks: list[Track],
        numbers: Int64[np.ndarray, "m"],
        boxes: Float[np.ndarray, "n 4"],
        labels: Int64[np.ndarray, "n"],
        least: float,
        owners: dict[int, Track],
    ) -> list[Track]:
        """Give tracks their boxes; gives those that are left without one."""
        if not tracks or not len(numbers):
            return tracks
        expected = np.stack([track.expected(self.frame) for track in tracks])
        overlaps = overlap(expected, boxes[numbers])
        own = np.array([track.label for track in tracks])
        overlaps[own[:, None] != labels[numbers]] = 0
        overlaps[overlaps < least] = 0
        pairs = [(t, b) for t, b in _best(overlaps) if overlaps[t, b] > 0]
        for t, b in pairs:
            tracks[t].take(boxes[numbers[b]].astype(float), self.frame)
            owners[int(numbers[b])] = tracks[t]
        joined = {t for t, _ in pairs}
        return [track for t, track in enumerate(tracks) if t not in joined]


def overlap(a: Float[np.ndarray, "n 4"], b: Float[np.ndarray, "m 4"]) -> Float[np.ndarray, "n m"]:
    """Intersection over union of each pair of boxes x0 y0 x1 y1."""
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    both = (high - low).clip(min=0).prod(2)
    areas = [(x[:, 2:] - x[:, :2]).clip(min=0).prod(1) for x in (a, b)]
    return both / np.maximum(areas[0][:, None] + areas[1] - both, 1e-9)


def _best(values: Float[np.ndarray, "n m"]) -> list[tuple[int, int]]:
    """Pairs, each row and column once, with the largest sum."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        return _greedy(values)
    rows, columns = linear_sum_assignment(-values)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def _greedy(values: Float[np.ndarray, "n m"]) -> list[tuple[int, int]]:
    """Pairs, each row and column once, the largest first."""
    rows: set[int] = set()
    columns: set[int] = set()
    pairs = []
    for at in np.argsort(-values, axis=None, kind="stable").tolist():
        i, j = divmod(at, values.shape[1])
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            pairs.append((i, j))
    return pairs


def _middle(box: Float[np.ndarray, "4"]) -> Float[np.ndarray, "2"]:
    return (box[:2] + box[2:]) / 2
