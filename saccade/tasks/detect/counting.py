"""Boxes and masks as COCO's format has them, and faster-coco-eval, which counts them.

An image is a dict of tensors: boxes, labels and scores as predicted; truth, classes, crowd and area
as annotated. With masks, `masks` and `true_masks` are their compressed runs.
"""

from typing import Any

import torch
from torch import Tensor

ByImage = dict[int, dict[str, Any]]


def evaluated(by_image: ByImage, classes: int, kind: str = "bbox") -> Any:
    """faster-coco-eval's evaluation; categories are our own numbers for the classes."""
    if not by_image:
        raise ValueError("evaluation: no image was read; check the validation set")
    if all(one["crowd"].all() for one in by_image.values()):
        raise ValueError(
            f"evaluation: no box to be found in {len(by_image)} images; check the validation set"
        )
    COCO, Evaluation = package()
    keys = sorted(by_image)
    truth = [box for key in keys for box in truth_rows(key, by_image[key])]
    predicted = [box for key in keys for box in result_rows(key, by_image[key], kind)]
    parts = {
        "images": [{"id": key, **sides_of(by_image[key])} for key in keys],
        "categories": [{"id": c, "name": str(c)} for c in range(classes)],
    }
    sides = [
        COCO({**parts, "annotations": numbered(boxes)}, print_function=_silent)
        for boxes in (truth, predicted)
    ]
    evaluation = Evaluation(*sides, iouType=kind, print_function=_silent)
    evaluation.run()
    return evaluation


def sides_of(one: dict[str, Any]) -> dict[str, int]:
    """Width and height of an image."""
    height, width = one["size"].tolist()
    return {"width": width, "height": height}


def numbered(boxes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with ids; 0 would mean that a row has no match."""
    for number, box in enumerate(boxes, 1):
        box["id"] = number
    return boxes


def truth_rows(key: int, one: dict[str, Any]) -> list[dict[str, Any]]:
    """What is annotated in an image, a row for each object."""
    rows = zip(
        _corner_and_size(one["truth"]), one["classes"].tolist(), one["crowd"].tolist(),
        one["area"].tolist(), _outlines(one, "true_masks", len(one["truth"])), strict=True,
    )  # fmt: skip
    return [
        {
            "image_id": key, "category_id": c, "bbox": box, "area": area, "iscrowd": int(crowd),
            **outline,
        }
        for box, c, crowd, area, outline in rows
    ]  # fmt: skip


def result_rows(key: int, one: dict[str, Any], kind: str = "bbox") -> list[dict[str, Any]]:
    """What is predicted of an image, a row for each box; areas are those of boxes, or of masks."""
    real = one["boxes"].isfinite().all(1) & one["scores"].isfinite()  # others overlap nothing
    boxes, labels, scores = (one[k][real] for k in ("boxes", "labels", "scores"))
    outlines = _outlines(one, "masks", len(real))
    outlines = [outline for outline, there in zip(outlines, real.tolist(), strict=True) if there]
    corners = _corner_and_size(boxes)
    areas = [box[2] * box[3] for box in corners]
    if kind == "segm":
        areas = [float(area([outline["segmentation"]])[0]) for outline in outlines]
    rows = zip(corners, labels.tolist(), scores.tolist(), areas, outlines, strict=True)
    return [
        {
            "image_id": key, "category_id": c, "bbox": box, "score": score, "area": covered,
            "iscrowd": 0, **outline,
        }
        for box, c, score, covered, outline in rows
    ]  # fmt: skip


def area(runs: list[dict[str, Any]]) -> Any:
    """Pixels of masks."""
    from faster_coco_eval.core import mask

    return mask.area(runs)


def _outlines(one: dict[str, Any], key: str, count: int) -> list[dict[str, Any]]:
    """For each object of an image its runs, or nothing if there are no masks."""
    if key not in one:
        return [{}] * count
    size = one["size"].tolist()
    return [{"segmentation": {"size": size, "counts": counts}} for counts in one[key]]


def _corner_and_size(boxes: Tensor) -> list[list[float]]:
    """x y w h of corners, without a further rounding."""
    boxes = boxes.double()
    return torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), 1).tolist()


def package() -> tuple[Any, Any]:
    """faster-coco-eval's set and its evaluation."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as error:
        raise ImportError(
            "average precision is counted by faster-coco-eval: pip install 'saccade[detection]'"
        ) from error
    return COCO, COCOeval_faster


def _silent(*_: Any) -> None:
    """Print nothing, in place of the evaluation's own table."""
