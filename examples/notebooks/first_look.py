# %% [markdown]
# # A first look
# A trained model comes with the package. Three lines go from a picture to an answer.

# %%
import saccade
from saccade import samples

model = saccade.load("linglo_nano")  # trained on 37 breeds of cats and dogs
answer = model.predict(samples.path("cat"))
answer

# %% [markdown]
# An answer holds names and scores, the likeliest first. `predict` takes a file, a folder, a PIL image, an array,
# a tensor, or a list of them, which are looked at in batches.

# %%
from PIL import Image

photos = [samples.path("cat"), Image.open(samples.path("astronaut"))]
for each in model.predict(photos, top=2):
    print(f"{each.label:20} {each.score:.1%}   {each}")

# %% [markdown]
# Where does each head look? `attention` gives arrays by the name of the layer, and draws itself.

# %%
maps = model.attention(samples.path("cat"))
print({layer: heads.shape for layer, heads in maps.items()})
maps

# %% [markdown]
# With SASA and QnA, one pixel of the picture can be asked where it looks.

# %%
saccade.load("sasa_nano").attention(samples.path("cat"), at=(110, 200))
