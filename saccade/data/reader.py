"""Read the images at given positions and make a batch of them, in a worker process.

Random numbers are a function of a key, such as (seed, epoch, position), alone: the batch is the
same to the bit in any worker, whatever was read before.
"""

import contextlib
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.data import default_collate

from saccade.data.augment import Mix
from saccade.data.batch_augment import draws
from saccade.data.picture import Unreadable

ORDER, SAMPLE, MIX, INSTEAD = range(4)  # separate streams of random numbers
TRIES = 50  # unreadable images in a row
SMALL = 2**16  # bytes
STEP = 32  # of padded sizes, so that they recur


@runtime_checkable
class Readable(Protocol):
    """A data set that a loader can read: `Images`, or any whose targets suit the transform."""

    def __len__(self) -> int: ...
    def read(self, i: int, /) -> tuple[Any, Any]: ...
    def name(self, i: int, /) -> str: ...


@dataclass
class Batch:
    """Images stacked, with targets: tensors where all have one shape, else lists."""

    image: Float[Tensor, "B 3 H W"]
    """Smaller ones are padded with zeros, at the right and below."""
    target: dict[str, Any]
    """Always "label" for classes; "other" and "share" where images were mixed."""
    index: Int64[Tensor, "B"]
    """Numbers of the images in their set."""
    size: Int64[Tensor, "B 2"]
    """Height and width of each image without the padding."""

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device | str) -> "Batch":
        return self._each(lambda t: t.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._each(Tensor.pin_memory)

    def unpadded(self) -> "list[Batch]":
        """The images without padding, as one batch for each size, in order of first occurrence."""
        groups: dict[tuple[int, int], list[int]] = {}
        for i, (H, W) in enumerate(self.size.tolist()):
            groups.setdefault((H, W), []).append(i)
        if list(groups) == [tuple(self.image.shape[2:])]:
            return [self]
        return [
            Batch(
                self.image[those, :, :H, :W],
                {key: _at(value, those) for key, value in self.target.items()},
                self.index[those],
                self.size[those],
            )
            for (H, W), those in groups.items()
        ]

    def _each(self, f: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(self, **_mapped(self.__dict__, Tensor, f))

    def __getstate__(self) -> dict[str, Any]:
        """Small tensors leave a worker by value, which is faster than by shared memory."""
        return _mapped(self.__dict__, Tensor, lambda t: t.numpy() if t.nbytes < SMALL else t)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = _mapped(state, np.ndarray, torch.from_numpy)


def _at(value: Any, those: list[int]) -> Any:
    return value[those] if isinstance(value, Tensor) else [value[i] for i in those]


def _mapped(value: Any, kind: type, f: Callable[[Any], Any]) -> Any:
    """Apply `f` to every value of type `kind`, also inside dicts and lists."""
    if isinstance(value, dict):
        return {key: _mapped(inner, kind, f) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, kind, f) for inner in value]
    return f(value) if isinstance(value, kind) else value


@dataclass(frozen=True)
class Order:
    """A request for the images at consecutive positions of one step."""

    epoch: int
    step: int
    first: int
    indices: Int64[np.ndarray, "B"]


Result = tuple[Batch | None, dict[str, str]]  # what could be read, and why the rest could not


class Reader:
    """Reads what an `Order` names, in this process or in a worker."""

    def __init__(
        self, images: Readable, transform: Callable, seed: int, mix: Mix | None, whole: bool
    ):
        self.images, self.transform, self.seed = images, transform, seed
        self.mix, self.whole = mix, whole

    def __call__(self, order: Order) -> Result:
        bad: dict[str, str] = {}
        batch = self._at_once(order)
        if batch is None:
            batch = self._one_by_one(order, bad)
        if batch is not None and self.mix is not None:
            draw = int(chance(MIX, self.seed, order.epoch, order.step).integers(2**32))
            batch.image, mixed = self.mix(batch.image, batch.target["label"], draw)
            batch.target |= mixed
        return batch, bad

    def _at_once(self, order: Order) -> Batch | None:
        """The batch of images in memory that are transformed together; None for all others."""
        take: Any = getattr(self.images, "block", None)
        transform: Any = getattr(self.transform, "block", None)
        block = take(order.indices) if take and transform else None
        if block is None:
            return None
        pixels, labels = block
        numbers = draws((SAMPLE, self.seed, order.epoch), order.first, len(pixels))
        in_turn: Any = getattr(self.transform, "in_turn", None)
        if in_turn:
            numbers = in_turn(numbers, order.indices, len(self.images), self.seed, order.epoch)
        image = transform(pixels, numbers)
        if image is None:
            return None
        size = torch.tensor(image.shape[2:]).expand(len(image), 2).clone()
        label = torch.from_numpy(labels.astype(np.int64))
        return Batch(image, {"label": label}, torch.from_numpy(order.indices), size)

    def _one_by_one(self, order: Order, bad: dict[str, str]) -> Batch | None:
        samples = []
        with _borrowed_chance():
            for position, i in enumerate(order.indices.tolist(), order.first):
                readable = self._read_or_replace(order.epoch, position, i, bad)
                if readable is None:
                    continue
                i, (image, target) = readable
                _seed(SAMPLE, self.seed, order.epoch, position)
                more = self._companions(order.epoch, position, bad)
                samples.append((*self.transform(image, target, *more), i))
        if not samples:
            return None
        images, targets, indices = zip(*samples, strict=True)
        image, size = _padded(images)
        target = {key: _side_by_side([t[key] for t in targets]) for key in targets[0]}
        return Batch(image, target, torch.tensor(indices), size)

    def _companions(self, epoch: int, position: int, bad: dict[str, str]) -> list[tuple[Any, Any]]:
        """Further images that the transform puts together with one; their number is drawn first.

        One that cannot be read is replaced by another, as everywhere.
        """
        name: Any = getattr(self.transform, "companions", None)
        places = name(len(self.images), epoch) if name else []
        pairs = [self._read_or_replace(epoch, position, i, bad) for i in places]
        return [] if None in pairs else [pair[1] for pair in pairs if pair is not None]

    def _read_or_replace(
        self, epoch: int, position: int, i: int, bad: dict[str, str]
    ) -> tuple[int, tuple[Any, Any]] | None:
        """Image i; if it cannot be read and batches should stay whole, a random other one."""
        others = None
        for _ in range(TRIES if self.whole else 1):
            try:
                return i, self.images.read(i)
            except Unreadable as error:
                bad[error.name] = error.reason
            others = others or chance(INSTEAD, self.seed, epoch, position)
            i = int(others.integers(len(self.images)))
        return None


def _padded(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Images of several sizes as one tensor, a multiple of STEP high and wide, and their sizes."""
    size = torch.tensor([image.shape[-2:] for image in images])
    if len({image.shape for image in images}) == 1:
        return _side_by_side(images), size
    H, W = (-(-side // STEP) * STEP for side in size.amax(0).tolist())
    spread = [F.pad(image, (0, W - image.shape[-1], 0, H - image.shape[-2])) for image in images]
    return _side_by_side(spread), size


def _side_by_side(values: Iterable[Any]) -> Any:
    """Tensors of one shape as one, numbers as a tensor, anything else as a list."""
    values = list(values)
    kinds = {(v.shape, v.dtype) if isinstance(v, Tensor) else type(v) for v in values}
    if len(kinds) > 1 or not isinstance(values[0], Tensor | int | float):
        return values
    if isinstance(values[0], float):
        return torch.tensor(values, dtype=torch.float32)
    return default_collate(values)  # in a worker, straight into shared memory


# -- random numbers -------------------------------------------------------------------------


def chance(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def _seed(*key: int) -> None:
    """Seed all global generators of random numbers with a key."""
    a, b, c, d = map(int, np.random.SeedSequence(key).generate_state(4))
    random.seed(a)
    np.random.seed(b)
    torch.default_generator.manual_seed(c << 32 | d)


@contextlib.contextmanager
def _borrowed_chance() -> Generator[None]:
    """Restore the global generators of random numbers at the end."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
