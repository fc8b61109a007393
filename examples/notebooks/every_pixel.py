# %% [markdown]
# # A class for every pixel
# A segmenter learns sky, sea and boats of scenes that the cell below draws.

# %%
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import saccade

chance, root = np.random.default_rng(0), Path(tempfile.mkdtemp()) / "sea"
colours = np.array([(120, 180, 250), (20, 60, 140), (220, 60, 40)])
for split, count in (("train", 24), ("val", 6)):
    for kind in ("images", "masks"):
        (root / kind / split).mkdir(parents=True)
    for i in range(count):
        mask = np.zeros((80, 104), np.uint8)
        line, x = int(chance.integers(20, 60)), int(chance.integers(0, 76))
        mask[line:] = 1
        mask[max(line - 16, 0) : line + 8, x : x + 28] = 2
        pixels = colours[mask] + chance.normal(0, 12, (80, 104, 3))
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(
            root / "images" / split / f"{i}.jpg"
        )
        Image.fromarray(mask).save(root / "masks" / split / f"{i}.png")
(root / "classes.json").write_text(json.dumps({"classes": ["sky", "sea", "boat"]}))

# %%
run = saccade.train(
    "segment",
    root,
    model="linglo_nano",
    epochs=int(os.environ.get("EPOCHS", 8)),
    batch=4,
    size=80,
    settings={
        "model.start": "linglo_nano",
        "task.dim": 32,
        "task.inner": 64,
        "augment.crop": 64,
        "schedule.iterations": None,
        "optim.name": "adamw",
        "optim.lr": 2e-3,
        "loop.evaluate_every": 4,
    },
    out=root / "run",
    progress=False,
)
run

# %%
answer = run.load().predict(root / "images" / "val" / "0.jpg")
print(answer.shares)
answer
