"""The likeliest classes of pictures: files, folders and patterns through a trained classifier."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from saccade.data.picture import rgb
from saccade.engine import session
from saccade.engine.distributed import choose_device
from saccade.infer.files import pictures
from saccade.tasks.classify.task import Guess


def guesses(
    files: Iterable[str], model: str | Path, top: int = 5, device: str | None = None
) -> Iterator[tuple[str, list[Guess] | str]]:
    """Name what is in pictures.

    Args:
        files: pictures, folders of pictures, or patterns
        model: a run's folder, a saved model, or the name of one that comes with saccade
        top: how many classes of each
        device: cpu or cuda; the best there is if None

    Yields:
        of each picture its path and its likeliest classes, or why it could not be read
    """
    if top < 1:
        raise ValueError(f"predict: at least one class is named, got {top=}")
    paths = [path for word in files for path in pictures(word, "predict")]
    where = torch.device(choose_device(device))
    one = session.opened(model, where, "predict")
    task: Any = one.task
    transform = one.transform()
    for path in paths:
        try:
            photo = rgb(path, str(path))
        except (ValueError, FileNotFoundError) as error:
            yield str(path), str(error)
            continue
        with torch.no_grad():
            output = task(transform(photo)[None].to(where))
        yield str(path), task.predict(output, most=top)[0]
