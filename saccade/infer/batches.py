"""Run a trained model on pictures in batches, which worker processes read ahead.

The loader is that of training and evaluation: workers decode and resize while the model computes,
and a picture that cannot be read does not stop the others.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from saccade.data.images import Strings
from saccade.data.loader import Loader
from saccade.data.picture import Unreadable, rgb
from saccade.data.reader import Readable
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.recipes.recipe import Data

THREADS = 2  # that draw and write results while the model computes
# Of PNGs: a third of the time that Pillow's usual level takes, for 7% more bytes of a photograph.
COMPRESSION = 2


class Answer(NamedTuple):
    """The prediction for one picture, or the reason why it could not be read."""

    path: Path
    prediction: Any
    size: tuple[int, int] = (0, 0)
    """Its height and width as the model's input."""
    error: str = ""


class Photos:
    """Picture files as a data set for the loader, without targets."""

    def __init__(self, paths: Iterable[Path]):
        self.names = Strings(map(str, paths))

    def __len__(self) -> int:
        return len(self.names)

    def read(self, i: int) -> tuple[Image.Image, dict[str, Any]]:
        return rgb(self.name(i), self.name(i)), {}

    def name(self, i: int) -> str:
        return self.names[i]


class Sized:
    """A transform that also gives the picture's own height and width."""

    def __init__(self, transform: Callable[[Image.Image], Tensor]):
        self.transform = transform

    def __call__(self, photo: Image.Image, target: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        original = torch.tensor([photo.height, photo.width])
        return self.transform(photo), {**target, "original": original}


def predictions(
    paths: Sequence[Path],
    task: Any,
    transform: Callable[[Image.Image], Tensor],
    predict: Callable[[dict[str, Tensor], list[tuple[int, int]]], Sequence[Any]],
    device: torch.device,
    batch: int,
) -> Iterator[Answer]:
    """A task's prediction for each picture file, in the order of the paths; see `answers`."""
    yield from answers(Photos(paths), task, transform, predict, device, batch)


def answers(
    photos: Readable,
    task: Any,
    transform: Callable[[Image.Image], Tensor],
    predict: Callable[[dict[str, Tensor], list[tuple[int, int]]], Sequence[Any]],
    device: torch.device,
    batch: int,
    workers: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Answer]:
    """A task's prediction for each picture, in their order.

    Pictures of one size go through the model together, without padding, so that an answer does not
    depend on the other pictures of the batch.

    Args:
        photos: the pictures
        task: a trained task in eval mode, on `device`
        transform: from a picture to the model's input
        predict: from the task's output and the pictures' own sizes to a prediction for each
        device: of the task's weights
        batch: pictures that are read together
        workers: processes that read ahead; as for an evaluation if None
        dtype: of the task's weights

    Yields:
        an answer for every picture
    """
    if batch < 1:
        raise ValueError(f"--batch: at least one picture at a time, got {batch}")
    if not len(photos):
        return
    batch = min(batch, len(photos))
    if len(photos) <= batch:
        workers = 0  # one would only read what is waited for
    elif workers is None:
        workers = make.workers(Data(), Group(device=device))
    loader = Loader(
        photos, Sized(transform), batch=batch, workers=workers, shuffle=False, whole=False,
        limit=1.0,
    )  # fmt: skip
    try:
        for step, parts in enumerate(loader.epoch(0)):
            outcomes: dict[int, tuple[Any, tuple[int, int]]] = {}
            for part in [alike for padded in parts for alike in padded.unpadded()]:
                sizes = [(H, W) for H, W in part.target["original"].tolist()]
                size = part.image.shape[2], part.image.shape[3]
                part = part.to(device)
                with torch.no_grad():
                    image = part.image.to(dtype, memory_format=torch.channels_last)
                    output = task.infer(image, part.size)
                    batch_predictions = predict(output, sizes)
                for i, prediction in zip(part.index.tolist(), batch_predictions, strict=True):
                    outcomes[i] = prediction, size
            for i in range(step * batch, min((step + 1) * batch, len(photos))):
                yield _answer(Path(photos.name(i)), outcomes.get(i), loader.bad)
    finally:
        loader.close()


def _answer(path: Path, answer: tuple[Any, tuple[int, int]] | None, bad: dict[str, str]) -> Answer:
    if answer is None:
        why = Unreadable(str(path), bad.get(str(path), "for no known reason"))
        return Answer(path, None, error=str(why))
    return Answer(path, *answer)


def in_background(
    work: Callable[[Any], Any], items: Iterable[Any], threads: int = THREADS
) -> Iterator[Any]:
    """`map` in threads that work a little ahead: drawing and compressing release Python's lock."""
    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
