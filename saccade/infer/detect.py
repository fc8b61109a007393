"""Run a trained detector on pictures: files, folders and patterns."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from saccade.data.boxes.coco import ids_and_names
from saccade.data.boxes.outlines import encoded
from saccade.engine import session
from saccade.engine.distributed import choose_device
from saccade.infer.batches import predictions

BATCH = 4


class PictureBoxes(NamedTuple):
    """A picture and the boxes in it, or why it could not be read."""

    path: Path
    boxes: Any
    """`Detections`, or `Instances` with masks; None if it could not be read."""
    error: str = ""


class Detector:
    """A trained detector, ready for pictures."""

    def __init__(self, model: str | Path, device: str | None = None, tta: bool = False):
        """
        Args:
            model: a run's folder or a saved model
            device: cpu or cuda; the best there is if None
            tta: look at several views of every picture
        """
        self.device = torch.device(choose_device(device))
        loaded = session.open_model(model, self.device, "detect")
        self.task: Any = loaded.definition.viewing(loaded.task) if tta else loaded.task
        self.classes = loaded.classes
        self.ids: list[int] = loaded.notes.get("ids") or list(range(1, len(self.classes) + 1))
        self.transform = loaded.transform()

    @torch.no_grad()
    def __call__(self, photo: Image.Image, score: float | None = None) -> Any:
        """The boxes of one picture with at least this score, the highest first.

        Without a score, with at least that of its recipe (`task.score`).
        """
        image = self.transform(photo)[None].to(self.device)
        (boxes,) = self.predict(self.task(image), [(photo.height, photo.width)], score)
        return boxes

    def over(
        self, paths: Sequence[Path], score: float | None = None, batch: int = BATCH
    ) -> Iterator[PictureBoxes]:
        """The boxes of every picture; of one that cannot be read, the reason."""

        def predict(output: dict[str, Tensor], sizes: list[tuple[int, int]]) -> list[Any]:
            return self.predict(output, sizes, score)

        for answer in predictions(paths, self.task, self.transform, predict, self.device, batch):
            yield PictureBoxes(answer.path, answer.prediction, answer.error)

    def predict(
        self, output: dict[str, Tensor], sizes: list[tuple[int, int]], score: float | None
    ) -> list[Any]:
        """The task's boxes of each picture in a batch, the highest score first."""
        batch = self.task.predict(output, sizes, score)
        orders = [boxes.scores.argsort(descending=True, stable=True) for boxes in batch]
        return [
            type(boxes)(*(part[order].cpu() for part in boxes))
            for boxes, order in zip(batch, orders, strict=True)
        ]

    def coco(self, image: int, boxes: Any) -> list[dict[str, Any]]:
        """In COCO's format of results: x, y, width, height, and the data's own category ids."""
        return [
            {
                "image_id": image,
                "category_id": self.ids[label],
                "bbox": [round(v, 2) for v in (x0, y0, x1 - x0, y1 - y0)],
                "score": round(score, 5),
                **outline,
            }
            for (x0, y0, x1, y1), label, score, outline in zip(
                boxes.boxes.tolist(), boxes.labels.tolist(), boxes.scores.tolist(),
                _outlines(boxes), strict=True,
            )
        ]  # fmt: skip


def _outlines(boxes: Any) -> list[dict[str, Any]]:
    """For each object its mask as COCO's runs, or nothing if there are no masks."""
    masks = getattr(boxes, "masks", None)
    if masks is None:
        return [{}] * len(boxes.boxes)
    runs, size = encoded(masks.to(torch.uint8).numpy()), list(masks.shape[1:])
    return [{"segmentation": {"size": size, "counts": counts.decode()}} for counts in runs]


class Numbers:
    """COCO's image ids: those of an annotation file, by the file's name, if there is one.

    Else the file's own number if its name is one, else its place in the list.
    """

    def __init__(self, annotations: Path | None = None):
        self.in_use: set[int] = set()
        self.id_by_name: dict[str, int] | None = None
        if annotations is not None:
            self.id_by_name = {Path(name).name: i for i, name in ids_and_names(annotations)}

    def of(self, path: Path, place: int) -> int:
        if self.id_by_name is not None:
            if path.name not in self.id_by_name:
                raise ValueError(f"detect: the annotations list no picture {path.name!r}")
            return self.id_by_name[path.name]
        number = int(path.stem) if path.stem.isdecimal() else place
        number = max(self.in_use) + 1 if number in self.in_use else number
        self.in_use.add(number)
        return number
