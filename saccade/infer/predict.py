"""What is in these pictures: files, folders and patterns through a trained classifier."""

import glob
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from PIL import Image

from saccade.data.picture import is_one, rgb
from saccade.engine import session
from saccade.engine.distributed import chosen
from saccade.models.describe import card
from saccade.tasks.classify import Classify, Guess


def guesses(
    files: Iterable[str], model: str | Path, top: int = 5, device: str | None = None
) -> Iterator[tuple[str, list[Guess] | str]]:
    """Of each picture its likeliest classes, or the sentence that says why it was not read."""
    if top < 1:
        raise ValueError(f"predict: at least one class is named, got {top=}")
    paths = [path for word in files for path in pictures(word, "predict")]
    kind = torch.device(chosen(device))
    ready = session.opened(model, kind)
    task, about = ready.task, card(ready.task.net)
    if not isinstance(task, Classify):
        raise ValueError(f"predict: {str(model)!r} names no classes{ready.instead}")
    transform = ready.kind.test(ready.test, about["mean"], about["std"])
    for path in paths:
        try:
            photo: Image.Image = rgb(path, str(path))
        except (ValueError, FileNotFoundError) as error:
            yield str(path), str(error)
            continue
        with torch.no_grad():
            output = task(transform(photo)[None].to(kind))
        yield str(path), task.predict(output, most=top)[0]


def free(stem: str, taken: set[str]) -> str:
    """A name that no picture of this call has yet, for what is written of it."""
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}"
    taken.add(name)
    return name


def pictures(word: str, command: str, out: Path | None = None) -> list[Path]:
    """The picture files that a word on the command line means, frame 9 before frame 10.

    What lies in the folder `out` inside a folder was drawn before, and is none of its pictures.
    """
    path = Path(word)
    if path.is_dir():
        whole, drawn = path.resolve(), out.resolve() if out is not None else None
        inside = drawn is not None and whole in drawn.parents
        found = sorted(
            (
                p
                for p in path.rglob("*")
                if is_one(p.name) and not (inside and drawn in p.resolve().parents)
            ),
            key=_in_order,
        )
        if not found:
            raise FileNotFoundError(f"{command}: no picture in the folder {word!r}")
        return found
    if path.is_file() or not glob.has_magic(word):
        return [path]
    found = sorted((Path(p) for p in glob.glob(word, recursive=True)), key=_in_order)
    if not found:
        raise FileNotFoundError(f"{command}: nothing matches {word!r}")
    return found


def _in_order(path: Path) -> list[tuple[str, int]]:
    """Numbers by their value: words and numbers of the path, in turn."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", str(path))]
