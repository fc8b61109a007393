"""A class for every pixel, on small sets and small machines."""

from saccade.recipes.recipe import (
    Loop,
    MaskAugment,
    MaskTest,
    Model,
    Optim,
    Recipe,
    Schedule,
    Segment,
)

SEGMENT = Recipe(
    about="""A small set of images with masks, from scratch, on a CPU.
    saccade train segment --data FOLDER; images/ and masks/ with classes.json, or ADE20K's layout.
    Another backbone: --set model.name=qna_nano; one that was trained: model.start=RUN.""",
    model=Model(name="linglo_nano", drop_path=0.0),
    task=Segment(dim=64, inner=64),
    augment=MaskAugment(short=240, long=480, scale=(0.75, 1.5), crop=192, jitter=0.2),
    test=MaskTest(short=240, long=480),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=40, warmup=1, shape="poly", power=0.9),
    loop=Loop(batch=8, evaluate_every=2),
)

RECIPES = {"segment": SEGMENT}
CLAIMS = {}
