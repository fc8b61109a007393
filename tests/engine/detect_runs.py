"""A set with boxes and a recipe so small that a detector learns it in seconds."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from saccade.recipes import book
from saccade.recipes.detect import BoxAugment, BoxTest
from saccade.recipes.recipe import Loop, Model, Optim, Schedule, change

KINDS = {"disc": (210, 60, 40), "slab": (40, 90, 210)}
FIRST = 7  # category ids need not begin at one


def boxes_folder(root: Path, train: int = 8, val: int = 4, side: int = 64) -> Path:
    """One or two coloured rectangles on noise, as a COCO set."""
    chance = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        (root / "images" / split).mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for i in range(count):
            pixels = chance.normal(128, 20, (side, side + 16, 3))
            images.append(
                {"id": i + 1, "file_name": f"{i + 1:03}.png", "width": side + 16, "height": side}
            )
            for n in range(1 + i % 2):
                kind = (i + n) % 2
                w, h = chance.integers(16, 28, 2)
                x, y = chance.integers(0, side + 16 - w), chance.integers(0, side - h)
                pixels[y : y + h, x : x + w] = list(KINDS.values())[kind]
                annotations.append(
                    {
                        "id": len(annotations) + 1, "image_id": i + 1, "category_id": FIRST + kind,
                        "bbox": [int(v) for v in (x, y, w, h)], "area": int(w * h), "iscrowd": 0,
                    }
                )  # fmt: skip
            photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            photo.save(root / "images" / split / f"{i + 1:03}.png")
        (root / "annotations").mkdir(exist_ok=True)
        plain = {
            "images": images, "annotations": annotations,
            "categories": [{"id": FIRST + i, "name": name} for i, name in enumerate(KINDS)],
        }  # fmt: skip
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(plain))
    return root


THINGS = change(
    book.find("detect"),
    about="small",
    model=Model(name="sasa_nano_conv", drop_path=0.0),
    task__dim=32,
    task__depth=1,
    task__scales=1,
    data__workers=0,
    augment=BoxAugment(short=(64,), long=96, jitter=0.0),
    test=BoxTest(short=64, long=96),
    optim=Optim(name="adamw", lr=1e-3, lr_batch=16, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=2, warmup=0.5),
    loop=Loop(batch=4),
)
