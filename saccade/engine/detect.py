"""Where things are in these pictures: files, folders and patterns through a trained detector."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from saccade.data.picture import rgb
from saccade.engine import session
from saccade.engine.distributed import chosen
from saccade.engine.predict import pictures
from saccade.models.saved import card
from saccade.tasks.boxes import Found


class Seen(NamedTuple):
    """A picture and what was found in it, or the sentence that says why it was not read."""

    path: Path
    photo: Image.Image | None
    found: Found | None
    said: str = ""


class Detector:
    """A trained detector, ready for pictures."""

    def __init__(self, model: str | Path, device: str | None = None):
        self.device = torch.device(chosen(device))
        ready = session.opened(model, self.device)
        if ready.kind.verb != "detect":
            raise ValueError(f"detect: {str(model)!r} finds no boxes{ready.instead}")
        about = card(ready.task.net)
        self.task, self.classes = ready.task, ready.classes
        self.ids: list[int] = ready.notes.get("ids") or list(range(1, len(self.classes) + 1))
        self.transform = ready.kind.test(ready.test, about["mean"], about["std"])

    @torch.no_grad()
    def __call__(self, photo: Image.Image, score: float = 0.0) -> Found:
        """The boxes of one picture that the model is at least as sure of, the surest first."""
        x = self.transform(photo)[None].to(self.device)
        (found,) = self.task.predict(self.task(x), [(photo.height, photo.width)])
        order = found.scores.argsort(descending=True, stable=True)
        order = order[found.scores[order] >= score]
        return Found(*(part[order].cpu() for part in found))

    def over(self, files: Iterable[str], score: float = 0.0) -> Iterator[Seen]:
        """Every picture that the words mean; one that cannot be read is said, and passed."""
        for path in [path for word in files for path in pictures(word, "detect")]:
            try:
                photo = rgb(path, str(path))
            except (ValueError, FileNotFoundError) as error:
                yield Seen(path, None, None, str(error))
                continue
            yield Seen(path, photo, self(photo, score))

    def coco(self, image: int, found: Found) -> list[dict[str, Any]]:
        """In COCO's format of results: x, y, width, height, and the data's own category ids."""
        return [
            {
                "image_id": image,
                "category_id": self.ids[label],
                "bbox": [round(v, 2) for v in (x0, y0, x1 - x0, y1 - y0)],
                "score": round(score, 5),
            }
            for (x0, y0, x1, y1), label, score in zip(
                found.boxes.tolist(), found.labels.tolist(), found.scores.tolist(), strict=True
            )
        ]


def number(path: Path, place: int) -> int:
    """COCO's image id: the file's own number if its name is one, else its place in the list."""
    return int(path.stem) if path.stem.isdecimal() else place
