# %% [markdown]
# # More pixels
# A small network learns to double the pixels of photographs: cut-outs of the four pictures in the package.

# %%
import os
import tempfile
from pathlib import Path

from PIL import Image

import saccade
from saccade import samples

root = Path(tempfile.mkdtemp()) / "photos"
for split, names in (("train", samples.NAMES[1:]), ("val", samples.NAMES[:1])):
    (root / split).mkdir(parents=True)
    for name in names:
        photo = Image.open(samples.path(name))
        for i in range(8):
            left, top = 30 * i % (photo.width - 96), 40 * i % (photo.height - 96)
            photo.crop((left, top, left + 96, top + 96)).save(root / split / f"{name}{i}.png")

# %%
run = saccade.train(
    "upscale",
    root,
    epochs=int(os.environ.get("EPOCHS", 4)),
    batch=4,
    settings={"schedule.iterations": None, "schedule.warmup": 0, "loop.evaluate_every": 2},
    out=root / "run",
    progress=False,
)
run.best

# %%
small = Image.open(samples.path("cat")).resize((100, 66))
answer = run.load().predict(small)
print(answer)
answer
