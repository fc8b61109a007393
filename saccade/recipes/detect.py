"""Detectors for a small set on a small machine."""

from saccade.recipes.recipe import (
    BoxAugment,
    BoxTest,
    Data,
    Detr,
    Loop,
    Model,
    Optim,
    Recipe,
    RetinaNet,
    Schedule,
    change,
)

DETECT = Recipe(
    about="""A few hundred pictures with boxes, on a laptop's CPU.
    saccade train detect --data FOLDER; about 20 minutes a 300 pictures. model.start=RUN begins
    with a backbone that has learnt to tell classes, which helps where boxes are few.""",
    model=Model(name="linglo_nano", drop_path=0.0),
    task=RetinaNet(dim=64, depth=2),
    data=Data(holdout=0.2),
    augment=BoxAugment(short=(128, 144, 160, 176, 192), long=256, jitter=0.2, alike=True),
    test=BoxTest(short=160, long=256),
    optim=Optim(name="adamw", lr=1e-3, lr_batch=16, weight_decay=0.05, clip=1.0),
    schedule=Schedule(epochs=30, warmup=2, end=0.01),
    loop=Loop(batch=16, ema=0.99, evaluate_every=5),
)

DETECT_DETR = change(
    DETECT,
    about="""The same with a small DETR, which learns more slowly: boxes as a set, no anchors.
    pip install 'saccade[detection]'; saccade train detect_detr --data FOLDER. At a higher rate the
    decoder may settle on the same boxes for every picture.""",
    model=Model(name="qna_nano", drop_path=0.0),
    task=Detr(queries=25, dim=128, encoder=3, decoder=3, heads=8, hidden=512, dropout=0.0),
    optim=Optim(name="adamw", lr=2e-4, lr_batch=16, weight_decay=1e-4, clip=0.1),
    schedule=Schedule(epochs=200, warmup=5, end=0.01),
    loop=Loop(batch=16, ema=0.99, evaluate_every=10),
)

RECIPES = {"detect": DETECT, "detect_detr": DETECT_DETR}
CLAIMS = {}
