# %% [markdown]
# # Ship it
# A trained model as ONNX: one file that needs neither torch nor saccade, checked against the model it came from.

# %%
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from PIL import Image

import saccade
from saccade import export, samples

model = saccade.load("linglo_nano")
raw = export.prepared(model)
path = export.to_onnx(
    raw, Path(tempfile.mkdtemp()) / "pets.onnx", {"classes": model.notes["classes"]}
)
print(f"{path.stat().st_size / 1e6:.1f} MB")

# %%
x = model.transform(Image.open(samples.path("cat")))[None]
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
(logits,) = session.run(None, {"image": x.numpy()})
with torch.no_grad():
    print("largest difference", float(np.abs(logits - model(x).numpy()).max()))
model.notes["classes"][int(logits.argmax())]

# %% [markdown]
# The command `saccade export RUN` does the same, and also writes torch programs, compiled ones, 8-bit ONNX and
# folders for the Hugging Face hub: see the page "Ship it".
