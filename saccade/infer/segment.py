"""Run a trained segmenter on pictures: an overlay with a legend, and a mask of ids, for each.

NAME_overlay.png    the picture under its regions' colours, with the classes it holds
NAME_mask.png       the id of every pixel, as masks of the training set have it
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from saccade.data.picture import rgb
from saccade.draw.masks import overlay
from saccade.engine import session
from saccade.engine.distributed import choose_device
from saccade.files import writing
from saccade.infer.arrivals import arrivals
from saccade.infer.batches import COMPRESSION, Answer, in_background, predictions
from saccade.infer.files import free, paths_of

BATCH = 4


@dataclass(frozen=True)
class Segmented:
    """The files and the class shares of one picture."""

    overlay: Path
    mask: Path
    shares: dict[str, float]
    """The share of pixels of each class that it holds, the largest first."""
    size: tuple[int, int]
    """Its height and width as the model's input."""


class Segmenter:
    """A trained segmenter, ready for pictures.

    Args:
        model: a run's folder or a saved model
        device: cpu or cuda; the best there is if None
        window: cut each resized picture into overlapping windows of this side
        short: resize pictures to this short side; as in the model's evaluation if None
        tta: look at several views of every picture
    """

    def __init__(
        self,
        model: str | Path,
        device: str | None = None,
        window: int | None = None,
        short: int | None = None,
        tta: bool = False,
    ):
        self.device = torch.device(choose_device(device))
        loaded = session.open_model(model, self.device, "segment")
        self.task: Any = loaded.task
        if window is not None:
            if window < 64:
                raise ValueError(f"segment: a window is 64 pixels wide or more, got {window}")
            self.task.window = window
        if tta:
            self.task = loaded.definition.viewing(self.task)
        test = loaded.test
        if short is not None:
            if short < 32:
                raise ValueError(f"segment: a picture is shown at 32 pixels or more, got {short=}")
            test = replace(test, short=short, long=round(short * test.long / test.short))
        self.transform = loaded.transform(test)


def segmented(
    files: Iterable[str],
    model: str | Path,
    out: Path,
    device: str | None = None,
    window: int | None = None,
    short: int | None = None,
    batch: int = BATCH,
    tta: bool = False,
    watch: bool = False,
    most: int | None = None,
) -> Iterator[tuple[str, Segmented | str]]:
    """Segment pictures, and write an overlay and a mask for each.

    Args:
        files: pictures, folders of pictures, patterns, or - for a list on stdin
        model: a run's folder or a saved model
        out: the folder for NAME_overlay.png and NAME_mask.png
        device: cpu or cuda; the best there is if None
        window: cut each resized picture into overlapping windows of this side
        short: resize pictures to this short side; as in the model's evaluation if None
        batch: pictures that are read together
        tta: look at several views of every picture
        watch: the only word of `files` is a folder, in which new pictures are waited for
        most: of these, end after so many

    Yields:
        of each picture its path and what was written of it, or why it could not be read
    """
    words = list(files)
    paths = [] if watch else paths_of(words, "segment", out)
    ready = Segmenter(model, device, window, short, tta)
    task: Any = ready.task
    parts = arrivals(words[0], out, most) if watch else [paths]
    out.mkdir(parents=True, exist_ok=True)
    here = [path.stem for path in paths if path.resolve().parent == out.resolve()]
    in_use = {
        stem.rpartition("_")[0] for stem in here
    }  # so that no NAME_mask.png of theirs is lost

    def write(answer: Answer) -> tuple[str, Segmented | str]:
        if answer.error:
            return str(answer.path), answer.error
        labels, target = answer.prediction
        photo = rgb(answer.path, str(answer.path))
        return str(answer.path), _write_pictures(photo, labels, task, target, answer.size)

    def placed() -> Iterator[Answer]:
        """With names in the order of the pictures, whichever is written first."""
        for answer in (
            one
            for part in parts
            for one in predictions(part, task, ready.transform, task.predict, ready.device, batch)
        ):
            if answer.error:
                yield answer
            else:
                target = out / free(answer.path.stem, in_use)
                yield answer._replace(prediction=(answer.prediction.cpu().numpy(), target))

    yield from in_background(write, placed())


def _write_pictures(
    photo: Image.Image,
    labels: UInt8[np.ndarray, "H W"],
    task: Any,
    out: Path,
    size: Sequence[int],
) -> Segmented:
    counts = np.bincount(labels.ravel(), minlength=len(task.classes))
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    shares = {task.classes[i]: float(counts[i] / labels.size) for i in order}
    overlaid, mask = (out.with_name(f"{out.name}_{kind}.png") for kind in ("overlay", "mask"))
    result = Segmented(overlaid, mask, shares, (size[0], size[1]))
    with writing(result.overlay):
        sheet = overlay(photo, labels, list(task.classes))
        sheet.save(result.overlay, compress_level=COMPRESSION)
    with writing(result.mask):
        ids(labels, task.ids).save(result.mask)
    return result


def ids(labels: UInt8[np.ndarray, "H W"], class_ids: list[int]) -> Image.Image:
    """The mask with the ids of the training set's masks; 16 bits if one is above 255."""
    table = np.array(class_ids, np.uint8 if max(class_ids) < 256 else np.uint16)
    return Image.fromarray(table[labels])
