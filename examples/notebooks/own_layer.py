# %% [markdown]
# # A layer of your own
# One class, one decorator: the layer is in a model that every command knows.

# %%
import torch
from torch import nn

import saccade
from saccade import samples


@saccade.register("blur", like="linglo_nano")
class Blur(nn.Module):
    """Every pixel hears the mean of the 7 x 7 pixels around it, gated by itself."""

    def __init__(self, dim, heads):
        super().__init__()
        self.near = nn.AvgPool2d(7, stride=1, padding=3, count_include_pad=False)
        self.gate, self.mix = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def weights(self, x):
        """How open each pixel's gate is: B H W h, here one head."""
        return self.gate(x).sigmoid().mean(-1, keepdim=True)

    def forward(self, x):
        around = self.near(x.movedim(-1, 1)).movedim(1, -1)
        return self.mix(self.gate(x).sigmoid() * around)


model = saccade.build("linglo_nano_blur", num_classes=3)
print(model(torch.randn(2, 3, 64, 64)).shape)

# %% [markdown]
# The model that has it draws it. It is untrained here: this is what chance looks like.

# %%
model.eval().attention(samples.path("espresso_cup"), size=128)

# %% [markdown]
# Train it: `saccade.train("scratch", data, model="linglo_nano_blur")`, or from the command line with
# `--import FILE`. Feature pyramids and all else of timm's come with it.

# %%
import timm

pyramid = timm.create_model("linglo_nano_blur", features_only=True)
[tuple(m.shape[1:]) for m in pyramid(torch.randn(1, 3, 64, 64))]
