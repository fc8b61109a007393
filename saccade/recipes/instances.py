"""Boxes with a mask for each object: settings, and a Mask R-CNN for small sets and machines."""

from dataclasses import dataclass

from saccade.recipes.bounds import COUNT, SHARE, SOME, hold
from saccade.recipes.detect import DETECT
from saccade.recipes.group import TaskSettings
from saccade.recipes.recipe import Loop, Model, Optim, Schedule, change


@dataclass(frozen=True, kw_only=True)
class MaskRCNN(TaskSettings):
    """Task: boxes and masks, by proposals and heads that look at each of them."""

    dim: int = 256
    """Channels of the pyramid and of the mask head."""
    hidden: int = 1024
    """Width of the two layers that tell the class and the box of a proposal."""
    convs: int = 4
    """Layers of the mask head before its last two."""
    anchor: float = 8.0
    """Side of a level's square anchors, in strides of that level."""
    proposals: int = 1000
    """Proposals an image."""
    sampled: int = 512
    """Proposals an image that the heads learn from."""
    score: float = 0.05
    """Boxes below this are not kept."""
    overlap: float = 0.5
    """Of two boxes of a class that overlap by more, the one with the higher score is kept."""
    most: int = 100
    """Boxes an image."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME, hidden=SOME, convs=COUNT, anchor=(0.1, 1000), proposals=SOME)
        hold(self, sampled=SOME, score=SHARE, overlap=SHARE, most=SOME)


INSTANCES = change(
    DETECT,
    about="""A few hundred pictures with outlined objects, on a laptop's CPU.
    pip install 'saccade[detection]'; saccade train instances --data FOLDER, a COCO set with
    "segmentation". model.start=RUN begins with a backbone that was trained to classify.""",
    model=Model(name="linglo_nano", drop_path=0.0),
    task=MaskRCNN(dim=64, hidden=256, convs=2, proposals=200, sampled=64),
    optim=Optim(name="adamw", lr=1e-3, lr_batch=16, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=30, warmup=2, end=0.01),
    loop=Loop(batch=16, ema=0.99, evaluate_every=5),
)

RECIPES = {"instances": INSTANCES}
CLAIMS = {}
