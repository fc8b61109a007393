# %% [markdown]
# # Ten kinds of clothes
# Photographs of clothes from the clothing dataset (CC0), 3,068 to learn from. Name their folder in `CLOTHING`:
# `train/CLASS/*.jpg` and `val/CLASS/*.jpg`. Fine-tuning the small model of the package is the best first choice for
# a set of this size; 4 epochs take three or four minutes of one core, and twelve would be better.

# %%
import os
import tempfile
from pathlib import Path

import saccade

data = Path(os.environ.get("CLOTHING", "clothing10"))
epochs = int(os.environ.get("EPOCHS", 4))
run = saccade.train(
    "finetune",
    data,
    epochs=epochs,
    size=96,
    out=Path(tempfile.mkdtemp()) / "clothes",
    progress=False,
)
run

# %% [markdown]
# The confusion of the best model: shirts, t-shirts and longsleeves are close.

# %%
run.figure("confusion")

# %%
photos = sorted((data / "val" / "hat").iterdir())[:4]
model = run.load()
for answer in model.predict(photos, top=3):
    print(answer)

# %%
model.attention(photos[0])
