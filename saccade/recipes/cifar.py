"""CIFAR-10 on a laptop's CPU: small pictures in memory, shifted and mirrored many at once."""

from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule, change

QUICK = Recipe(
    about="""CIFAR-10 in about ten minutes on two cores.
    saccade train cifar_quick; --data says where it lies if not in a usual place. An epoch takes
    about 110 seconds of one core of a Zen 5.""",
    model=Model(name="linglo_cifar", drop_path=0.0),
    task=Classify(smoothing=0.1),
    data=Data(workers=0),
    augment=Augment(size=32, pad=4, interpolation="bilinear"),
    test=Test(size=32, crop=1.0, interpolation="bilinear"),
    optim=Optim(name="muon", lr=0.02, momentum=0.95, beta=0.99, weight_decay=0.05),
    schedule=Schedule(epochs=9, warmup=1.5, shape="poly"),
    loop=Loop(batch=128, evaluate_every=3, precision="bf16"),
)
BEST = change(
    QUICK,
    about="""CIFAR-10 without haste: more disguise, an average of the weights, longer.
    saccade train cifar_best; about an hour and a half on two cores; it has not been run yet.""",
    model__drop_path=0.05,
    augment=Augment(
        size=32, pad=4, cutout=8, mixup=0.2, cutmix=1.0, mix=0.5, interpolation="bilinear"
    ),
    schedule=Schedule(epochs=150, warmup=5),
    loop=Loop(batch=128, ema=0.999, evaluate_every=5),
)

RECIPES = {"cifar_quick": QUICK, "cifar_best": BEST}
CLAIMS = {}
