"""Run a trained classifier on pictures: files, folders and patterns."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from saccade.engine import session
from saccade.engine.distributed import choose_device
from saccade.infer.batches import predictions
from saccade.infer.files import paths_of
from saccade.tasks.classify.task import Guess

BATCH = 32


def guesses(
    files: Iterable[str],
    model: str | Path,
    top: int = 5,
    device: str | None = None,
    batch: int = BATCH,
) -> Iterator[tuple[str, list[Guess] | str]]:
    """The likeliest classes of pictures.

    Args:
        files: pictures, folders of pictures, patterns, or - for a list on stdin
        model: a run's folder, a saved model, or the name of one that comes with saccade
        top: how many classes of each
        device: cpu or cuda; the best there is if None
        batch: pictures that go through the model together

    Yields:
        of each picture its path and its likeliest classes, or why it could not be read
    """
    if top < 1:
        raise ValueError(f"predict: at least one class is named, got {top=}")
    paths = paths_of(files, "predict")
    where = torch.device(choose_device(device))
    loaded = session.open_model(model, where, "predict")
    task: Any = loaded.task

    def predict(output, sizes):
        return task.predict(output, sizes, top)

    for answer in predictions(paths, task, loaded.transform(), predict, where, batch):
        yield str(answer.path), answer.error or answer.prediction
