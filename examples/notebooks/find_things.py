# %% [markdown]
# # Boxes
# A detector learns discs and slabs, drawn by the cell below, as a COCO set. It is a toy: what you see is the whole
# path from a folder to boxes, which is the same for photographs.

# %%
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import saccade

chance, root = np.random.default_rng(0), Path(tempfile.mkdtemp()) / "things"
for split, count in (("train", 48), ("val", 12)):
    (root / "images" / split).mkdir(parents=True)
    images, boxes = [], []
    for i in range(count):
        photo = Image.fromarray(chance.normal(128, 20, (96, 96, 3)).clip(0, 255).astype("uint8"))
        for _ in range(2):
            kind, side = int(chance.integers(2)), int(chance.integers(20, 36))
            x, y = (int(v) for v in chance.integers(0, 96 - side, 2))
            pen = ImageDraw.Draw(photo)
            shape = (x, y, x + side, y + side)
            pen.ellipse(shape, fill="#d23c28") if kind == 0 else pen.rectangle(
                shape, fill="#285ad2"
            )
            boxes.append(
                {
                    "id": len(boxes) + 1,
                    "image_id": i,
                    "category_id": kind + 1,
                    "bbox": [x, y, side, side],
                    "area": side * side,
                    "iscrowd": 0,
                }
            )
        photo.save(root / "images" / split / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 96, "height": 96})
    names = [{"id": 1, "name": "disc"}, {"id": 2, "name": "slab"}]
    (root / "annotations").mkdir(exist_ok=True)
    text = json.dumps({"images": images, "annotations": boxes, "categories": names})
    (root / "annotations" / f"instances_{split}.json").write_text(text)

# %%
run = saccade.train(
    "detect",
    root,
    model="linglo_nano",
    epochs=int(os.environ.get("EPOCHS", 12)),
    batch=8,
    size=96,
    settings={
        "model.start": "linglo_nano",
        "task.dim": 32,
        "schedule.iterations": None,
        "optim.lr": 2e-3,
        "loop.evaluate_every": 4,
    },
    out=root / "run",
    progress=False,
)
run

# %%
model = run.load()
answer = model.predict(root / "images" / "val" / "0.png", score=0.3)
print(answer.labels, answer.boxes.round().tolist())
answer
