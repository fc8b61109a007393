"""Recipes for pixels so small that a run takes seconds."""

from saccade.recipes import book
from saccade.recipes.augment import Augment, Test
from saccade.recipes.autoencode import AutoEncode
from saccade.recipes.recipe import Loop, Model, Optim, Schedule, change
from saccade.recipes.segment import MaskAugment, MaskTest, Segment

SEGMENT = change(
    book.find("segment"),
    about="small",
    model=Model(name="linglo_nano", drop_path=0.0),
    task=Segment(dim=16, inner=32),
    data__workers=0,
    augment=MaskAugment(short=40, long=80, scale=(0.8, 1.5), crop=32),
    test=MaskTest(short=40, long=80),
    optim=Optim(name="adamw", lr=5e-3),
    schedule=Schedule(epochs=12, shape="poly", power=0.9),
    loop=Loop(batch=4, bn_decay=0.5, evaluate_every=6),
)

AUTOENCODE = change(
    book.find("autoencode_qna"),
    about="small",
    task=AutoEncode(encoder="max", decoder="bilinear", dim=8),
    data__workers=0,
    augment=Augment(size=64, scale=(1.0, 1.0), ratio=(1.0, 1.0)),
    test=Test(size=64, crop=1.0),
    optim=Optim(name="adam", lr=5e-3),
    schedule=Schedule(epochs=8),
    loop=Loop(batch=4, evaluate_every=4),
)
