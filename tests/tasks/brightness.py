"""A task that saccade does not know: how bright is a picture? Registered from outside."""

import base64
import io
from dataclasses import dataclass

import torch
from PIL import Image
from torch import nn

from saccade import tasks
from saccade.data import augment, unlabelled
from saccade.recipes.augment import Augment, Test
from saccade.recipes.group import TaskSettings
from saccade.recipes.recipe import Loop, Model, Optim, Recipe, Schedule
from saccade.tasks.task import Metric, Task


@dataclass(frozen=True, kw_only=True)
class Brightness(TaskSettings):
    """Task: the mean brightness of an image, by a squared error."""

    width: int = 8
    """Channels of the network."""


RECIPE = Recipe(
    about="How bright pictures are. saccade train brightness --data FOLDER",
    model=Model(name="brightness_net"),
    task=Brightness(width=4),
    augment=Augment(size=32, scale=(1.0, 1.0), ratio=(1.0, 1.0)),
    test=Test(size=32, crop=1.0),
    optim=Optim(name="adam", lr=0.02),
    schedule=Schedule(epochs=6),
    loop=Loop(batch=4, evaluate_every=3),
)


class BrightnessNet(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.head = nn.Linear(width, 1)
        self.default_cfg = {
            "architecture": "brightness_net", "input_size": (3, 32, 32),
            "mean": (0.0,) * 3, "std": (1.0,) * 3,
        }  # fmt: skip

    def forward(self, image):
        return self.head(self.stem(image).relu().mean((2, 3)))

    def describe(self):
        return {"kind": "brightness_net", "width": self.width}


class BrightnessTask(Task):
    best = "close"

    def __init__(self, net):
        super().__init__()
        self.net, self.classes = net, ()

    def forward(self, image, size=None):
        return {"brightness": self.net(image)}

    def raw(self, image):
        return {"brightness": self.net(image)}

    def loss(self, output, target):
        return {"squared": (output["brightness"][:, 0] - target["brightness"]).square().mean()}

    def predict(self, output, sizes):
        return output["brightness"][:, 0].tolist()

    def metric(self):
        return Closeness()


class Closeness(Metric):
    """The share of images that are guessed to a tenth, in percent."""

    def __init__(self):
        self.close, self.images = 0, 0

    def update(self, output, target):
        error = (output["brightness"][:, 0] - target["brightness"]).abs()
        self.close += int((error < 0.1).sum())
        self.images += len(error)

    def state(self):
        return {"close": self.close, "images": self.images}

    def add(self, state):
        self.close += state["close"]
        self.images += state["images"]

    def compute(self):
        return {"close": 100 * self.close / self.images, "images": self.images}

    def tables(self):
        stream = io.BytesIO()
        Image.new("RGB", (8, 8), (255, 200, 0)).save(stream, "PNG")
        png = base64.b64encode(stream.getvalue()).decode()
        return {"pictures": {"grey_scale": {"png": png, "caption": "From dark to bright"}}}


class WithBrightness:
    """Any transform, with the brightness of its result as the target."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, photo, label=None):
        image = self.transform(photo)
        return image if label is None else (image, {"brightness": float(image.mean())})


TASK = tasks.TaskDefinition(
    name="brightness",
    settings=(Brightness,),
    augment=Augment,
    test=Test,
    recipes={"brightness": RECIPE},
    data_hint="a folder of pictures",
    find=unlabelled.find,
    every=lambda path, classes: unlabelled.every(path),
    align=lambda images, classes: images,
    train_transform=lambda *settings: WithBrightness(augment.train(*settings)),
    test_transform=lambda *settings: WithBrightness(augment.test(*settings)),
    network=lambda recipe, classes, options: BrightnessNet(recipe.task.width, **options),
    task=lambda settings, net, classes, notes: BrightnessTask(net),
    check_model=lambda name: None,
    builders={"brightness_net": BrightnessNet},
    figures={"close": tasks.Figure("within a tenth", "%", digits=1)},
    hub_tag="image-feature-extraction",
)


def register():
    if TASK.name not in tasks.TASKS:
        tasks.register(TASK)


def pictures(folder, count=16):
    """Grey pictures, from dark to bright."""
    folder.mkdir(parents=True)
    for i in range(count):
        level = 255 * i // (count - 1)
        Image.new("RGB", (40, 36), (level,) * 3).save(folder / f"{i:02}.png")
    return folder


def error(net, photo):
    """How far a network is from the brightness of a picture."""
    image = torch.from_numpy(photo).permute(2, 0, 1)[None].float() / 255
    return float((net(image)[0, 0] - image.mean()).detach().abs())
