"""How well boxes are found: the twelve figures of COCO, counted by faster-coco-eval.

    AP           mean over classes and overlaps .50, .55, .. .95 of the precision, over 101 recalls
    AP50 AP75    at one overlap
    APs APm APl  of objects below 32^2, below 96^2 and above, by their annotated area
    AR1 10 100   mean of the largest recall with so many boxes a class and image
    ARs ARm ARl  by area, as above

All in percent. A figure for which the truth has no object (no small object: no APs) is left out;
pycocotools gives -1. Crowds are ignored, and so are predicted boxes inside a crowd.

The truth is what the targets say, image by image; nothing is read from a file here.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from saccade.tasks.detect import mistakes
from saccade.tasks.detect.counting import (
    ByImage,
    evaluated,
    numbered,
    package,
    result_rows,
    sides_of,
    truth_rows,
)
from saccade.tasks.task import Metric

FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
MOST = 12  # images that are named
MOST_CURVES = 12  # classes with a curve of their own: those of the most boxes
ABOUT = (
    f"Predicted boxes of a score of {mistakes.SURE:g} or more, paired with true ones that they "
    f"overlap by {mistakes.OVERLAP:g} or more. Taken for {mistakes.BACKGROUND}: missed. "
    f"{mistakes.BACKGROUND.capitalize()} taken for a class: a box of nothing."
)
Predict = Callable[[dict[str, Any], list[tuple[int, int]]], Sequence[Any]]


class AveragePrecision(Metric):
    """Boxes that a task predicts, against those that the targets name, by image."""

    KIND: ClassVar[str] = "bbox"
    """Whose overlap `compute` and `tables` count: of boxes, or of masks ("segm")."""

    def __init__(self, classes: Sequence[str], ids: Sequence[int] | None, predict: Predict):
        package()  # so that a missing package is noticed now, not after an epoch
        self.classes = tuple(classes)
        self.ids = tuple(ids) if ids is not None else tuple(range(1, len(self.classes) + 1))
        self.predict = predict
        self.by_image: ByImage = {}
        """By image: boxes, labels, scores as found; truth, classes, crowd, area as annotated."""
        self.indices: dict[int, int] = {}
        """The place in the set of each image, by its id."""
        self._evaluation: Any = None

    def update(self, output: dict[str, Any], target: dict[str, Any]) -> None:
        originals = [(int(h), int(w)) for h, w in target["original"]]
        self.note(self.predict(output, originals), originals, target)

    def note(
        self,
        predictions: Sequence[Any],
        originals: list[tuple[int, int]],
        target: dict[str, Any],
    ) -> None:
        """Keep what was predicted of some images, of these heights and widths, and the truth."""
        if "index" in target:
            keys = [int(key) for key in target["id"]]
            self.indices |= dict(zip(keys, target["index"].tolist(), strict=True))
        for i, (key, one) in enumerate(zip(target["id"], predictions, strict=True)):
            self.by_image.setdefault(
                int(key),
                {
                    "boxes": _plain(one.boxes, torch.float32).reshape(-1, 4),
                    "labels": _plain(one.labels, torch.int64),
                    "scores": _plain(one.scores, torch.float32),
                    "truth": _plain(target["boxes"][i], torch.float32).reshape(-1, 4),
                    "classes": _plain(target["labels"][i], torch.int64),
                    "crowd": _plain(target["crowd"][i], torch.bool),
                    "area": _plain(target["area"][i], torch.float32),
                    "size": torch.tensor(originals[i]),
                },
            )
        self._evaluation = None

    def state(self) -> dict[str, Any]:
        return {"by_image": self.by_image, "indices": self.indices}

    def add(self, state: dict[str, Any]) -> None:
        self.indices = {**state["indices"], **self.indices}
        self.by_image = {
            **state["by_image"],
            **self.by_image,
        }  # an image counts once, even if two processes evaluated it
        self._evaluation = None

    def compute(self) -> dict[str, float]:
        stats = self._evaluated().stats
        figures = {k: 100 * float(v) for k, v in zip(FIGURES, stats, strict=True) if v > -1}
        return {**figures, "images": len(self.by_image)}

    def tables(self) -> dict[str, Any]:
        """AP of each class; precision over recall; what is taken for what; images to look at.

        AP is None for a class that the truth does not have. `precision`, `recall` and `score` of a
        class are those at the score where their harmonic mean (F1) is largest, at an overlap of .5.
        """
        evaluated = self._evaluated().eval
        precision, scores = (evaluated[k][:, :, :, 0, -1] for k in ("precision", "scores"))
        # of both: overlaps, recalls, classes
        images = [self.by_image[key] for key in sorted(self.by_image)]
        boxes = np.zeros(len(self.classes), np.int64)
        for one in images:
            boxes += np.bincount(one["classes"][~one["crowd"]], minlength=len(boxes))
        return {
            "per_class": [
                {
                    "class": name,
                    "AP": _mean(precision[..., c]),
                    "AP50": _mean(precision[0, :, c]),
                    **_best_point(precision[0, :, c], scores[0, :, c]),
                    "boxes": int(boxes[c]),
                }
                for c, name in enumerate(self.classes)
            ],
            "precision": {
                name: _curve(part)
                for name, part in (
                    ("mean of .50 to .95", precision),
                    ("overlap .50", precision[:1]),
                    ("overlap .75", precision[5:6]),
                )
            },
            "precision_of_classes": {
                self.classes[c]: _curve(precision[:1, :, c : c + 1])
                for c in sorted(np.argsort(-boxes, kind="stable")[:MOST_CURVES].tolist())
                if boxes[c]
            },
            "confusion": mistakes.confusion(images, len(self.classes)),
            "classes": [*self.classes, mistakes.BACKGROUND],
            "about_confusion": ABOUT,
            "examples": {"The worst images: the truth, and what was predicted": self._examples()},
        }

    def _examples(self) -> list[dict[str, Any]]:
        """The images with the most boxes that are missed or predicted wrongly."""
        faults = {key: mistakes.fault(self.by_image[key]) for key in self.indices}
        worst = sorted(faults, key=lambda key: (faults[key].order, key))[:MOST]
        return [{"index": self.indices[k], "caption": faults[k].caption} for k in worst]

    def results(self) -> list[dict[str, Any]]:
        """What was found, as COCO's result format has it: the annotation file's category ids."""
        return [
            {
                "image_id": key,
                "category_id": self.ids[box["category_id"]],
                "bbox": box["bbox"],
                "score": box["score"],
                **_text(box),
            }
            for key in sorted(self.by_image)
            for box in result_rows(key, self.by_image[key], self.KIND)
        ]

    def annotations(self, name: Callable[[int], str]) -> dict[str, Any]:
        """What there was to find, as a COCO json that `results` can be counted against.

        Args:
            name: of an image, by its place in the set
        """
        boxes = numbered(
            [box for key in sorted(self.by_image) for box in truth_rows(key, self.by_image[key])]
        )
        for box in boxes:
            box |= {"category_id": self.ids[box["category_id"]], **_text(box)}
        return {
            "images": [
                {"id": key, "file_name": name(self.indices[key]), **sides_of(self.by_image[key])}
                for key in sorted(self.indices)
            ],
            "annotations": boxes,
            "categories": [
                {"id": i, "name": name} for i, name in zip(self.ids, self.classes, strict=True)
            ],
        }

    def _evaluated(self) -> Any:
        if self._evaluation is None:
            self._evaluation = evaluated(self.by_image, len(self.classes), self.KIND)
        return self._evaluation


def _text(row: dict[str, Any]) -> dict[str, Any]:
    """A mask's runs as JSON can hold them; nothing for a row without."""
    if "segmentation" not in row:
        return {}
    runs = row["segmentation"]
    return {"segmentation": {**runs, "counts": runs["counts"].decode()}}


def _plain(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.detach().to("cpu", dtype)


def _curve(precision: np.ndarray) -> list[float | None]:
    """Precision at each of 101 recalls, over overlaps and the classes that there are."""
    known = precision[:, :, (precision > -1).any((0, 1))]
    return known.mean((0, 2)).tolist() if known.size else []


def _best_point(precision: np.ndarray, scores: np.ndarray) -> dict[str, float | None]:
    """Precision and recall in percent, and the score, where F1 is largest; None if unknown."""
    if not (precision > -1).any():
        return dict.fromkeys(("precision", "recall", "score"))
    recall = np.linspace(0, 1, len(precision))
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    at = int(f1.argmax())
    if f1[at] <= 0:
        return {"precision": 0.0, "recall": 0.0, "score": None}
    return {
        "precision": 100 * float(precision[at]), "recall": 100 * float(recall[at]),
        "score": float(scores[at]),
    }  # fmt: skip


def _mean(precision: np.ndarray) -> float | None:
    known = precision[precision > -1]
    return 100 * float(known.mean()) if known.size else None
