# %% [markdown]
# # Defects of solar cells
# 2,624 electroluminescence images of solar cells come with `pip install elpv-dataset`. Is a cell broken? We take those
# that experts were sure of and begin with the weights of the package: what is wrong with a cell is small and rare, so
# a network that has seen something learns faster than one that has seen nothing. Two thirds of the cells are sound, so
# an answer is worth something where it is right more often than that. Four or five minutes of one core.

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
)
folder = Path(tempfile.mkdtemp()) / "cells"
for i, k in enumerate(chosen):
    name = "broken" if probability[k] == 1 else "sound"
    place = folder / ("val" if i < 400 else "train") / name
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
# How many of the broken cells does it find, and what speaks for the one that it is surest of? Evidence is exact: red
# speaks for the class, blue against.

# %%
from saccade import view
from saccade.data import picture

model = run.load()
broken = sorted((folder / "val" / "broken").iterdir())
answers = model.predict(broken)
hits = [(a.score, path) for a, path in zip(answers, broken, strict=True) if a.label == "broken"]
print(f"{len(hits)} of {len(broken)} broken cells were found")

# %% pictures not kept: the images' licence (CC BY-NC-SA) is not this repository's
score, surest = max(hits)
photo = picture.read(surest, 96)
x = picture.to_input(photo, model.default_cfg)
maps = view.class_evidence(model, x, [0, 1], fine=True)
view.sheet(
    photo, {"evidence": maps}, f"a broken cell, {score:.0%}", run.classes, signed=True, side=2.5
)
