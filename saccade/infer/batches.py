"""Pictures through a trained model in batches, which worker processes read ahead.

The loader is the one of training and evaluation: it decodes and resizes beside the model, and a
picture that cannot be read never stops the others.
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
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.recipes.recipe import Data

THREADS = 2  # that draw and write results beside the model


class Answer(NamedTuple):
    """One picture: what was predicted of it, or why it could not be read."""

    path: Path
    prediction: Any
    size: tuple[int, int] = (0, 0)
    """Height and width at which the model saw it."""
    error: str = ""


class Photos:
    """Picture files as a loader reads them; there is nothing to learn from them."""

    def __init__(self, paths: Iterable[Path]):
        self.names = Strings(map(str, paths))

    def __len__(self) -> int:
        return len(self.names)

    def read(self, i: int) -> tuple[Image.Image, dict[str, Any]]:
        return rgb(self.name(i), self.name(i)), {}

    def name(self, i: int) -> str:
        return self.names[i]


class Sized:
    """A transform that also tells the picture's own height and width."""

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
    """What a task predicts of each picture, in the order of the paths.

    Pictures of one size are looked at together, without padding: the answers do not depend on
    which others share a batch.

    Args:
        paths: picture files
        task: a trained task in eval mode, on `device`
        transform: a picture to what the model is shown
        predict: the task's output and the pictures' own sizes to a prediction for each
        device: where the task lies
        batch: pictures that are read together

    Yields:
        an answer for every path
    """
    if batch < 1:
        raise ValueError(f"--batch: at least one picture at a time, got {batch}")
    if not paths:
        return
    batch = min(batch, len(paths))
    alone = len(paths) <= batch  # a worker would only read what is waited for
    workers = 0 if alone else make.workers(Data(), Group(device=device))
    loader = Loader(
        Photos(paths), Sized(transform), batch=batch, workers=workers, shuffle=False, whole=False,
        limit=1.0,
    )  # fmt: skip
    try:
        for step, parts in enumerate(loader.epoch(0)):
            answers: dict[int, tuple[Any, tuple[int, int]]] = {}
            for part in [alike for padded in parts for alike in padded.unpadded()]:
                sizes = [(H, W) for H, W in part.target["original"].tolist()]
                size = part.image.shape[2], part.image.shape[3]
                part = part.to(device)
                with torch.no_grad():
                    output = task(part.image.to(memory_format=torch.channels_last), part.size)
                    batch_predictions = predict(output, sizes)
                for i, prediction in zip(part.index.tolist(), batch_predictions, strict=True):
                    answers[i] = prediction, size
            for i in range(step * batch, min((step + 1) * batch, len(paths))):
                yield _answer(paths[i], answers.get(i), loader.bad)
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
    """`map`, done by threads a little ahead: drawing and compressing leave Python's lock alone."""
    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
