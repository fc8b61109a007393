"""CIFAR-10 on a laptop's CPU: small pictures in memory, shifted and mirrored many at once."""

from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule, change

# AdamW with linglo_nano (layout CCHH) had 79.9% of the test pictures after 8 epochs of about a
# minute each; a forerunner of this model with Muon 85.0% of 5,000 held-out training pictures after
# 3 epochs and 282 CPU seconds (one seed each).
QUICK = Recipe(
    about="""CIFAR-10 in about ten minutes on two cores.
    saccade train cifar_quick; --data says where it lies if not in a usual place. An epoch takes
    about 110 seconds of one core of a Zen 5. 85% is the goal, and what a forerunner had after 3 of
    3 epochs; these 9 have not been run yet.""",
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
    about="""CIFAR-10 in an hour of one core, or half an hour of two: for docs/records.md.
    saccade train cifar_record; five seeds of it are a record's row. It has not been
    run yet; 91% is the goal.""",
    schedule=Schedule(epochs=32, warmup=3, shape="poly"),
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

RECIPES = {"cifar_quick": QUICK, "cifar_record": RECORD, "cifar_best": BEST}
CLAIMS = {}
