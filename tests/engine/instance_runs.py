"""A set with outlined objects and a recipe so small that Mask R-CNN trains on it in seconds."""

import json
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from saccade.recipes import book
from saccade.recipes.detect import BoxAugment, BoxTest
from saccade.recipes.recipe import Loop, Model, Schedule, change

KINDS = {"disc": (210, 60, 40), "star": (40, 90, 210)}
FIRST = 7  # category ids need not begin at one


def outlines_folder(root: Path, train: int = 8, val: int = 4, side: int = 64) -> Path:
    """One or two discs and stars on noise, as a COCO set with polygons."""
    chance = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        (root / "images" / split).mkdir(parents=True, exist_ok=True)
        (root / "annotations").mkdir(exist_ok=True)
        images, annotations = [], []
        for i in range(count):
            pixels = chance.normal(128, 20, (side, side + 16, 3)).clip(0, 255).astype(np.uint8)
            sheet = Image.fromarray(pixels)
            name = f"{i + 1:03}.png"
            images.append({"id": i + 1, "file_name": name, "width": side + 16, "height": side})
            for n in range(1 + i % 2):
                kind = (i + n) % 2
                radius = float(chance.uniform(9, 14))
                x = float(chance.uniform(radius, side + 16 - radius))
                y = float(chance.uniform(radius, side - radius))
                corners = corners_of(kind, x, y, radius)
                ImageDraw.Draw(sheet).polygon(corners, fill=list(KINDS.values())[kind])
                xs, ys = zip(*corners, strict=True)
                box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
                annotations.append(
                    {
                        "id": len(annotations) + 1, "image_id": i + 1, "category_id": FIRST + kind,
                        "bbox": box, "area": box[2] * box[3] / 2, "iscrowd": 0,
                        "segmentation": [[v for corner in corners for v in corner]],
                    }
                )  # fmt: skip
            sheet.save(root / "images" / split / name)
        plain = {
            "images": images, "annotations": annotations,
            "categories": [{"id": FIRST + i, "name": name} for i, name in enumerate(KINDS)],
        }  # fmt: skip
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(plain))
    return root


def corners_of(kind: int, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """Of a disc, or of a star with four arms."""
    count = 24 if kind == 0 else 8
    lengths = [radius if kind == 0 or k % 2 == 0 else 0.4 * radius for k in range(count)]
    return [
        (x + r * math.cos(math.tau * k / count), y + r * math.sin(math.tau * k / count))
        for k, r in enumerate(lengths)
    ]


OUTLINED = change(
    book.find("instances"),
    about="small",
    model=Model(name="sasa_nano_conv", drop_path=0.0),
    task__dim=32,
    task__hidden=64,
    task__convs=1,
    task__anchor=4.0,
    task__proposals=40,
    task__sampled=32,
    data__workers=0,
    augment=BoxAugment(short=(64,), long=96, jitter=0.0),
    test=BoxTest(short=64, long=96),
    optim__lr=5e-3,
    schedule=Schedule(epochs=2, warmup=0.5),
    loop=Loop(batch=4, evaluate_every=100),
)
