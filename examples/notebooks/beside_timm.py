# %% [markdown]
# # Beside timm
# Every model is a model of timm's, and every model of timm's can be trained by every command.

# %%
import timm
import torch

import saccade
from saccade import samples

net = timm.create_model("linglo_nano", pretrained=True)
print(net.pretrained_cfg["num_classes"], timm.list_models("linglo_*")[:4])

# %% [markdown]
# timm's own path shows a picture as the model saw pictures in its evaluations: size, crop, interpolation, mean and
# deviation travel with the weights.

# %%
from PIL import Image

config = timm.data.resolve_model_data_config(net)
transform = timm.data.create_transform(**config)
photo = Image.open(samples.path("cat")).convert("RGB")
with torch.no_grad():
    by_timm = net.eval()(transform(photo)[None]).softmax(-1)[0]
answer = net.predict(photo)
print(config)
print(answer.label, round(answer.score, 4), round(float(by_timm.max()), 4))

# %% [markdown]
# Features, a new classifier, layer-wise rates: timm's words.

# %%
features = timm.create_model("qna_nano", features_only=True)
print([tuple(m.shape[1:]) for m in features(torch.randn(1, 3, 96, 96))])
other = saccade.load("linglo_nano", num_classes=7)
print(other(torch.randn(2, 3, 96, 96)).shape)
from timm.optim import create_optimizer_v2

optimiser = create_optimizer_v2(other, opt="adamw", lr=1e-3, layer_decay=0.8)
print(len(optimiser.param_groups), "groups of parameters")

# %% [markdown]
# The other way round: a ResNet of timm's is trained by our recipes, and answers as ours do.

# %%
from saccade.engine import make
from saccade.recipes import book

task = make.task(book.find("scratch"), ("cat", "dog"))
resnet = timm.create_model("resnet10t", num_classes=2)
print(type(task.net).__name__, sum(p.numel() for p in resnet.parameters()))
