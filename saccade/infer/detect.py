"""Where things are in these pictures: files, folders and patterns through a trained detector."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from saccade.data.boxes.coco import listed
from saccade.data.picture import rgb
from saccade.engine import session
from saccade.engine.distributed import chosen
from saccade.models.describe import card
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
        self.task: Any = ready.task
        self.classes = ready.classes
        self.ids: list[int] = ready.notes.get("ids") or list(range(1, len(self.classes) + 1))
        self.transform = ready.kind.test(ready.test, about["mean"], about["std"])

    @torch.no_grad()
    def __call__(self, photo: Image.Image, score: float | None = None) -> Found:
        """The boxes of one picture that the model is at least as sure of, the surest first.

        Without a score, as sure as its recipe says (`task.score`).
        """
        x = self.transform(photo)[None].to(self.device)
        usual = self.task.score
        try:
            self.task.score = usual if score is None else score
            (found,) = self.task.predict(self.task(x), [(photo.height, photo.width)])
        finally:
            self.task.score = usual
        order = found.scores.argsort(descending=True, stable=True)
        return Found(*(part[order].cpu() for part in found))

    def over(self, paths: Iterable[Path], score: float | None = None) -> Iterator[Seen]:
        """Every picture; one that cannot be read is said, and passed."""
        for path in paths:
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


class Numbers:
    """COCO's image ids: those of an annotation file, by the file's name, if there is one.

    Else the file's own number if its name is one, else its place in the list.
    """

    def __init__(self, annotations: Path | None = None):
        self.taken: set[int] = set()
        self.known: dict[str, int] | None = None
        if annotations is not None:
            self.known = {Path(name).name: i for i, name in listed(annotations)}

    def of(self, path: Path, place: int) -> int:
        if self.known is not None:
            if path.name not in self.known:
                raise ValueError(f"detect: the annotations list no picture {path.name!r}")
            return self.known[path.name]
        number = int(path.stem) if path.stem.isdecimal() else place
        number = max(self.taken) + 1 if number in self.taken else number
        self.taken.add(number)
        return number
