# %% [markdown]
# # Defects of solar cells
# 2,624 electroluminescence images of solar cells come with `pip install elpv-dataset`. Is a cell broken? We take 1,200
# of those that experts were sure of, 900 to learn from, and begin with the weights of the package: what is wrong with
# a cell is small and rare, so a network that has seen something learns faster than one that has seen nothing. About
# two thirds of the cells are sound; an answer is worth something where it is right more often than that.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
from elpv_dataset.utils import load_dataset
from PIL import Image

import saccade

images, probability, kinds = load_dataset()
chosen = np.random.default_rng(0).permutation(
    np.flatnonzero((probability == 0) | (probability == 1))
)[:1200]
folder = Path(tempfile.mkdtemp()) / "cells"
for i, k in enumerate(chosen):
    name = "broken" if probability[k] == 1 else "sound"
    place = folder / ("val" if i < 300 else "train") / name
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(images[k]).resize((96, 96)).save(place / f"{k}.png")
print(len(chosen), "cells,", int((probability[chosen] == 1).sum()), "broken")

# %%
epochs = int(os.environ.get("EPOCHS", 6))
run = saccade.train(
    "finetune",
    folder,
    epochs=epochs,
    size=96,
    batch=32,
    out=folder / "run",
    progress=False,
)
run

# %% [markdown]
# Which of the broken cells does it find, and what speaks for it? Evidence is exact: red speaks for the class, blue against.

# %%
from saccade import view
from saccade.data import picture

model = run.load()
broken = sorted((folder / "val" / "broken").iterdir())[:6]
[(answer.label, round(answer.score, 2)) for answer in model.predict(broken)]

# %% pictures not kept: the images' licence (CC BY-NC-SA) is not this repository's
photo = picture.read(broken[0], 96)
x = picture.to_input(photo, model.default_cfg)
maps = view.class_evidence(model, x, [0, 1], fine=True)
view.sheet(photo, {"evidence": maps}, "a broken cell", run.classes, signed=True, side=2.5)
